// What the plugin's interface answers (airflow_tf/web/models.py), asked again and again.

export interface Gang {
  dag_id: string;
  run_id: string;
  task_id: string;
}

export interface Holder {
  gang: Gang;
  replica: number;
  state: string;
  share_percent: number;
  since: string;
}

export interface Device {
  host: string;
  uuid: string;
  kind: string;
  name: string;
  state: string;
  memory_bytes: number | null;
  free_bytes: number | null;
  utilization_percent: number | null;
  reason: string;
  holders: Holder[];
}

export interface Host {
  name: string;
  seen: string;
  devices: number;
}

export interface Waiter {
  host: string;
  position: number;
  gang: Gang;
  replicas: number;
  wanted: number;
  priority: number;
  waited_seconds: number;
  reason: string;
}

export interface DevicesPage {
  hosts: Host[];
  devices: Device[];
  queue: Waiter[];
  problem: string;
}

export interface Replica {
  replica: number;
  state: string;
  generation: number;
  attempts: number;
  devices: string[];
  step: number | null;
  rate: number | null;
  is_slowest: boolean;
  cause: string;
  message: string;
  started: string | null;
  updated: string | null;
  ended: string | null;
}

export interface Attempt {
  replica: number;
  generation: number;
  attempt: number;
  state: string;
  step: number | null;
  cause: string;
  message: string;
  exit_code: number | null;
  started: string;
  ended: string | null;
  checkpoint: string | null;
}

export interface Training {
  key: string;
  task_id: string;
  since: string;
  renewed: string | null;
  cancelled_by: string | null;
  count: number | null;
  is_here: boolean;
  replicas: Replica[];
  attempts: Attempt[];
}

export interface Curve {
  replica: number;
  cursor: string;
  is_new: boolean;
  has_more: boolean;
  points: Record<string, [number, number][]>;
}

export interface SessionConfig {
  asked?: Record<string, unknown>;
  applied?: Record<string, string>;
  passed?: Record<string, string>;
}

export interface Details {
  replica: number;
  session_config: SessionConfig;
  placement: Record<string, number>;
  on_cpu: string[];
  transfers: Record<string, number>;
  checkpoints: { name: string; step: number | null; size_bytes: number; saved: string; problem: string }[];
}

export interface AssetEvents {
  asset_events: { id: number; timestamp: string; extra: Record<string, unknown> | null }[];
}

/** An answer that is none: what to tell the user, and whether asking again is of use. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly isFinal: boolean,
  ) {
    super(message);
  }
}

const FINAL: Record<number, string> = {
  401: "You are signed out. Load this page anew to sign in.",
  403: "You have no permission to read this. Ask whoever manages the users of this Airflow.",
};

/** How much the server's clock is ahead of this one, by the last answer. */
let aheadMilliseconds = 0;

export const serverNow = () => Date.now() + aheadMilliseconds;

/** Return an answer and its tag; null instead of what has not changed since `tag`. */
export async function ask<T>(path: string, tag: string, signal: AbortSignal): Promise<{ data: T | null; tag: string }> {
  let answer: Response;
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    answer = await fetch(new URL(path, document.baseURI), { cache: "no-store", headers, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Refusal("The API server does not answer. Asking again.", false);
  }
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (!Number.isNaN(date)) aheadMilliseconds = date - Date.now();
  if (answer.status === 304) return { data: null, tag };
  if (answer.ok) return { data: (await answer.json()) as T, tag: answer.headers.get("ETag") ?? "" };
  const body = (await answer.json().catch(() => null)) as { detail?: unknown } | null;
  const detail = typeof body?.detail === "string" ? body.detail : `The API server answers ${answer.status}.`;
  const final = FINAL[answer.status];
  throw new Refusal(final ?? detail, final !== undefined);
}

/** Wait some seconds, and as long as nobody sees the page. */
export function pause(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let isOver = false;
    const look = () => {
      if (!signal.aborted && (!isOver || document.hidden)) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    signal.addEventListener("abort", look, { once: true });
    document.addEventListener("visibilitychange", look);
    window.setTimeout(() => {
      isOver = true;
      look();
    }, seconds * 1000);
  });
}

/** Tell what a failed look was, and whether to look again; a look that was given up tells nothing. */
export function reasonOf(error: unknown, signal: AbortSignal): Refusal | null {
  if (signal.aborted) return null;
  return error instanceof Refusal ? error : new Refusal(String(error), false);
}

export interface Polled<T> {
  data: T | null;
  problem: string;
}

/** Ask for a path every few seconds; what was last answered stays while a later answer fails. */
export function usePolled<T>(path: string, seconds: number): Polled<T> {
  const [state, setState] = React.useState<Polled<T> & { path: string }>({ data: null, problem: "", path });
  React.useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    const poll = async () => {
      let tag = "";
      while (!signal.aborted) {
        try {
          const answer = await ask<T>(path, tag, signal);
          tag = answer.tag;
          const { data } = answer;
          setState((old) => (data ? { data, problem: "", path } : old.problem ? { ...old, problem: "" } : old));
        } catch (error) {
          const refusal = reasonOf(error, signal);
          if (!refusal) return;
          setState((old) => ({ data: old.path === path ? old.data : null, problem: refusal.message, path }));
          if (refusal.isFinal) return;
        }
        await pause(seconds, signal);
      }
    };
    void poll();
    return () => {
      end.abort();
    };
  }, [path, seconds]);
  return state.path === path ? state : { data: null, problem: "" };
}

export const part = encodeURIComponent;
