// What Airflow calls the instances of a training task, in the words of its grid: a trial of a sweep by its arguments.
import { ask, part, pause, reasonOf } from "./api";

const POLL_SECONDS = 10;
const MOST_ROWS = 100; // Airflow gives no more at once, unless it is told to

interface Instances {
  task_instances: { map_index: number; rendered_map_index: string | null }[];
  total_entries: number;
}

/** Number of a replica -> its name; one that is only called by its number has none. */
export type Names = ReadonlyMap<number, string>;

async function look(path: string, signal: AbortSignal): Promise<Names> {
  const names = new Map<number, string>();
  let [seen, total] = [0, 1];
  while (seen < total) {
    const { data } = await ask<Instances>(`${path}&limit=${MOST_ROWS}&offset=${seen}`, "", signal);
    if (!data?.task_instances.length) break;
    for (const { map_index: number, rendered_map_index: name } of data.task_instances) {
      if (name && name !== `replica ${number}`) names.set(number, name);
    }
    seen += data.task_instances.length;
    total = data.total_entries;
  }
  return names;
}

/** Ask for the names every few seconds: a trial gets its when its task begins. Without an answer the numbers must do. */
export function useNames(dagId: string, runId: string, taskId: string): Names {
  const [names, setNames] = React.useState<Names>(new Map());
  React.useEffect(() => {
    const end = new AbortController();
    const { signal } = end;
    const run = `api/v2/dags/${part(dagId)}/dagRuns/${part(runId)}`;
    const path = `${run}/taskInstances?task_id=${part(taskId)}&order_by=map_index`;
    const poll = async () => {
      while (!signal.aborted) {
        try {
          const found = await look(path, signal);
          setNames(found);
        } catch (error) {
          const refusal = reasonOf(error, signal);
          if (!refusal || refusal.isFinal) return;
        }
        await pause(POLL_SECONDS, signal);
      }
    };
    void poll();
    return () => {
      end.abort();
    };
  }, [dagId, runId, taskId]);
  return names;
}
