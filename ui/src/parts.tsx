// Small parts that both pages are made of.
import { serverNow } from "./api";
import type { Gang } from "./api";

const TONES: Record<string, string> = {
  free: "success",
  succeeded: "success",
  reserved: "queued",
  waiting: "queued",
  shared: "info",
  busy: "running",
  running: "running",
  starting: "scheduled",
  stopped: "skipped",
  "not offered": "skipped",
  unhealthy: "failed",
  failed: "failed",
  lost: "failed",
  suspect: "warning",
};

/** A colour of Airflow's theme for a state. */
export const toneOf = (state: string) => TONES[state] ?? "none";

export const tone = (state: string) => ({ "--tone": `var(--chakra-colors-${toneOf(state)}-solid)` }) as React.CSSProperties;

export function State({ name }: { name: string }) {
  return (
    <span className="tf-state" style={tone(name)}>
      {name}
    </span>
  );
}

export function inBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
  const value = bytes / 2 ** (10 * power);
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[power] ?? ""}`;
}

export function inSeconds(seconds: number): string {
  const whole = Math.max(Math.round(seconds), 0);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d`;
}

export const count = (number: number, one: string, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

function everySecond(tick: () => void) {
  const timer = window.setInterval(tick, 1000);
  return () => {
    window.clearInterval(timer);
  };
}

/** How long ago something was; it is drawn anew only when its text changes. */
export function Age({ since, until }: { since: string; until?: string | null }) {
  const end = until ? Date.parse(until) : null;
  const text = React.useSyncExternalStore(everySecond, () =>
    inSeconds(((end ?? serverNow()) - Date.parse(since)) / 1000),
  );
  return (
    <time dateTime={since} title={new Date(since).toLocaleString()}>
      {text}
    </time>
  );
}

export function Bar({ label, part, text }: { label: string; part: number; text: string }) {
  const percent = Math.round(Math.min(Math.max(part, 0), 1) * 100);
  return (
    <div className="tf-bar">
      <span>{label}</span>
      <span className="tf-track" role="meter" aria-label={label} aria-valuenow={percent} aria-valuemin={0} aria-valuemax={100}>
        <span style={{ width: `${percent}%` }} className={percent >= 90 ? "tf-full" : ""} />
      </span>
      <span className="tf-number">{text}</span>
    </div>
  );
}

/** A link to the training page of a gang's run; no link where the user may not know whose it is. */
export function GangLink({ gang, replica }: { gang: Gang; replica?: number }) {
  if (!gang.dag_id) return <span className="tf-quiet">a DAG that you may not read</span>;
  const member = replica === undefined ? "" : `[${replica}]`;
  const path = `/dags/${encodeURIComponent(gang.dag_id)}/runs/${encodeURIComponent(gang.run_id)}/plugin/tf-training`;
  return <ReactRouterDOM.Link to={path}>{`${gang.dag_id} / ${gang.run_id} / ${gang.task_id}${member}`}</ReactRouterDOM.Link>;
}

export function Problem({ text }: { text: string }) {
  return text ? (
    <p className="tf-problem" role="alert">
      {text}
    </p>
  ) : null;
}

export function Empty({ title, children }: { title: string; children?: React.ReactNode }) {
  return (
    <div className="tf-empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Loading() {
  return (
    <p className="tf-quiet" role="status">
      Loading…
    </p>
  );
}
