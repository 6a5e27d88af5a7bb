// The points of curves as they come in, kept so that they can be drawn at once.
import type { Curve } from "./api";

/** Steps and values, steps ever growing. */
export type Line = [steps: number[], values: number[]];

/** What a page has of a replica's metrics: up to where, and one line per metric. */
export interface Have {
  cursor: string;
  lines: Map<string, Line>;
}

/** More points than a screen has columns are thinned out. */
const MOST_POINTS = 20_000;

/** Add what a replica's curves have gained. A replica that began again at an earlier step replaces what was later. */
export function gain(have: Have | undefined, curve: Curve): Have {
  const lines = new Map(curve.is_new ? [] : have?.lines);
  for (const [name, points] of Object.entries(curve.points)) {
    let [steps, values] = lines.get(name) ?? [[], []];
    [steps, values] = [[...steps], [...values]];
    for (const [step, value] of points) {
      while (steps.length && (steps[steps.length - 1] ?? 0) >= step) {
        steps.pop();
        values.pop();
      }
      steps.push(step);
      values.push(value);
    }
    if (steps.length > MOST_POINTS) {
      const last = steps.length - 1;
      const keep = (_: number, index: number) => index % 2 === 0 || index === last;
      [steps, values] = [steps.filter(keep), values.filter(keep)];
    }
    lines.set(name, [steps, values]);
  }
  return { cursor: curve.cursor, lines };
}

/** The names of all metrics, in the order in which they came. */
export function namesOf(all: Iterable<Have>): string[] {
  return [...new Set([...all].flatMap((have) => [...have.lines.keys()]))];
}
