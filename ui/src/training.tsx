// The tab of a run or of a task instance: what trains or has trained in it.
import { part, usePolled } from "./api";
import type { AssetEvents, Training } from "./api";
import { Curves } from "./curves";
import { ReplicaDetails } from "./details";
import { useNames } from "./names";
import { Age, count, Empty, Loading, Problem } from "./parts";
import { Replicas } from "./replicas";

const POLL_SECONDS = 3;
const PUBLISHED_POLL_SECONDS = 15;
const FIRST_CURVES = 8;

interface TabProps {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

const isLive = (gang: Training) => gang.replicas.some(({ state }) => state === "starting" || state === "running");

const gangPath = (dagId: string, key: string) => `airflow_tf/dags/${part(dagId)}/training/${part(key)}`;

function Facts({ gang }: { gang: Training }) {
  const states = new Map<string, number>();
  for (const { state } of gang.replicas) states.set(state, (states.get(state) ?? 0) + 1);
  return (
    <p className="tf-quiet">
      {count(gang.replicas.length, "replica")}
      {[...states].map(([state, number]) => `, ${number} ${state}`)} · asked for <Age since={gang.since} /> ago
      {isLive(gang) && gang.renewed && (
        <>
          {" "}
          · supervisor alive <Age since={gang.renewed} /> ago
        </>
      )}
      {gang.cancelled_by && ` · cancelled by ${gang.cancelled_by}`}
    </p>
  );
}

function GangPage({ gang, dagId, runId, replica }: { gang: Training; dagId: string; runId: string; replica: number | null }) {
  const numbers = gang.replicas.map((row) => row.replica);
  const own = replica !== null && numbers.includes(replica) ? replica : null;
  const [selected, setSelected] = React.useState(own ?? numbers[0] ?? 0);
  const [drawn, setDrawn] = React.useState<number[] | null>(null);
  const shown = drawn ?? (own === null ? numbers.slice(0, FIRST_CURVES) : [own]);
  const toggle = (number: number) => {
    setDrawn(shown.includes(number) ? shown.filter((each) => each !== number) : [...shown, number].sort((a, b) => a - b));
  };
  const path = gangPath(dagId, gang.key);
  const names = useNames(dagId, runId, gang.task_id);
  return (
    <>
      <Facts gang={gang} />
      <Replicas gang={gang} names={names} drawn={shown} selected={selected} onDraw={toggle} onSelect={setSelected} />
      {gang.is_here ? (
        <Curves path={path} runId={runId} replicas={shown} names={names} isLive={isLive(gang)} />
      ) : (
        <Empty title="The files of this training are not here.">
          Curves, session config, placement and checkpoints are read from the run folder: it is on another host, or removed.
        </Empty>
      )}
      <ReplicaDetails gang={gang} path={path} runId={runId} replica={selected} name={names.get(selected)} />
    </>
  );
}

function Published({ dagId, runId }: { dagId: string; runId: string }) {
  const path = `api/v2/assets/events?source_dag_id=${part(dagId)}&source_run_id=${part(runId)}&limit=20`;
  const { data, problem } = usePolled<AssetEvents>(path, PUBLISHED_POLL_SECONDS);
  const versions = (data?.asset_events ?? []).filter(({ extra }) => typeof extra?.uri === "string" && "digest" in extra);
  return (
    <section aria-labelledby="tf-published">
      <h2 id="tf-published">Published</h2>
      <Problem text={problem} />
      {data && versions.length === 0 && <p className="tf-quiet">This run has published nothing.</p>}
      {versions.map(({ id, timestamp, extra }) => (
        <dl key={id} className="tf-facts">
          <dt>version</dt>
          <dd>
            <code>{String(extra?.uri)}</code>
          </dd>
          <dt>published</dt>
          <dd>
            <Age since={timestamp} /> ago{typeof extra?.step === "number" && `, of step ${extra.step.toLocaleString()}`}
          </dd>
          {Object.entries((extra?.metrics ?? {}) as Record<string, unknown>).map(([name, value]) => (
            <React.Fragment key={name}>
              <dt>{name}</dt>
              <dd>{typeof value === "number" ? value.toPrecision(6) : JSON.stringify(value)}</dd>
            </React.Fragment>
          ))}
        </dl>
      ))}
    </section>
  );
}

interface TabsProps {
  gangs: Training[];
  chosen: string;
  onChoose: (key: string) => void;
}

function GangTabs({ gangs, chosen, onChoose }: TabsProps) {
  const buttons = React.useRef<(HTMLButtonElement | null)[]>([]);
  const move = (event: React.KeyboardEvent, index: number) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (index + step + gangs.length) % gangs.length;
    onChoose(gangs[next]?.key ?? chosen);
    buttons.current[next]?.focus();
  };
  return (
    <div role="tablist" aria-label="Trainings of this run" className="tf-tabs">
      {gangs.map((gang, index) => (
        <button
          key={gang.key}
          ref={(button) => {
            buttons.current[index] = button;
          }}
          type="button"
          role="tab"
          aria-selected={gang.key === chosen}
          tabIndex={gang.key === chosen ? 0 : -1}
          onClick={() => {
            onChoose(gang.key);
          }}
          onKeyDown={(event) => {
            move(event, index);
          }}
        >
          {gang.task_id}
        </button>
      ))}
    </div>
  );
}

function Run({ dagId, runId, taskId, mapIndex }: { dagId: string; runId: string; taskId: string; mapIndex: number }) {
  const task = taskId ? `&task_id=${part(taskId)}` : "";
  const path = `airflow_tf/dags/${part(dagId)}/training?run_id=${part(runId)}${task}`;
  const { data, problem } = usePolled<{ gangs: Training[] }>(path, POLL_SECONDS);
  const [key, setKey] = React.useState("");
  const gang = data?.gangs.find((each) => each.key === key) ?? data?.gangs[0];
  return (
    <main className="tf-page">
      <Problem text={problem} />
      {data === null && !problem && <Loading />}
      {data && !gang && (
        <Empty title={taskId ? "This task has trained nothing in this run." : "Nothing has been trained in this run."}>
          What a TensorFlow task trains shows here from the moment that it asks for devices.
        </Empty>
      )}
      {data && gang && (
        <>
          {data.gangs.length > 1 ? (
            <GangTabs gangs={data.gangs} chosen={gang.key} onChoose={setKey} />
          ) : (
            <h1>{gang.task_id}</h1>
          )}
          <GangPage key={gang.key} gang={gang} dagId={dagId} runId={runId} replica={mapIndex < 0 ? null : mapIndex} />
          {!taskId && <Published dagId={dagId} runId={runId} />}
        </>
      )}
    </main>
  );
}

export function TrainingTab({ dagId = "", runId = "", taskId = "", mapIndex }: TabProps) {
  const index = Number(mapIndex ?? -1);
  return <Run key={`${dagId}/${runId}/${taskId}/${index}`} dagId={dagId} runId={runId} taskId={taskId} mapIndex={index} />;
}
