// Colours of curves, told apart on light and on dark ground; from the ninth replica on they come again, dashed.
const COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#ec4899", "#84cc16"];

/** How many curves the interface gives at once (MAX_CURVES in airflow_tf/web/app.py). */
export const MOST_CURVES = 16;

export const colourOf = (replica: number) => COLOURS[replica % COLOURS.length] ?? "";

export const isDashed = (replica: number) => Math.floor(replica / COLOURS.length) % 2 === 1;
