// What is known of one replica: attempts, session config, placement, checkpoints.
import { part, usePolled } from "./api";
import type { Details, SessionConfig, Training } from "./api";
import { Age, count, inBytes, Problem, State } from "./parts";

const POLL_SECONDS = 5;

function Attempts({ gang, replica }: { gang: Training; replica: number }) {
  const rows = gang.attempts.filter((attempt) => attempt.replica === replica).reverse();
  if (rows.length === 0) return <p className="tf-quiet">It has not been started yet.</p>;
  const hasCleared = rows.some((row) => row.generation > 1);
  return (
    <div className="tf-scroll">
      <table aria-label={`Attempts of replica ${replica}`}>
        <thead>
          <tr>
            <th className="tf-number">Attempt</th>
            <th>State</th>
            <th>Started</th>
            <th className="tf-number">Took</th>
            <th className="tf-number">Step</th>
            <th className="tf-number">Exit code</th>
            <th>Why it ended</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.generation}.${row.attempt}`}>
              <td className="tf-number">
                {row.attempt}
                {hasCleared && <span className="tf-quiet"> of generation {row.generation}</span>}
              </td>
              <td>
                <State name={row.state} />
              </td>
              <td>{new Date(row.started).toLocaleString()}</td>
              <td className="tf-number">
                <Age since={row.started} until={row.ended} />
              </td>
              <td className="tf-number">{row.step?.toLocaleString()}</td>
              <td className="tf-number">{row.exit_code}</td>
              <td>
                {row.cause && row.cause !== "none" && <strong>{row.cause} </strong>}
                {row.message}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The leaves of a config by their paths, as `applied` names them. */
function leaves(value: unknown, path = ""): [string, string][] {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [[path, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, inner]) => leaves(inner, path ? `${path}.${name}` : name));
}

/** What became of a field: reports name it, or a message that it is in. */
function outcomeOf(report: Record<string, string> | undefined, path: string): string | undefined {
  const known = Object.keys(report ?? {}).find((name) => path === name || path.startsWith(`${name}.`));
  return known === undefined ? undefined : report?.[known];
}

function Config({ config }: { config: SessionConfig }) {
  const asked = leaves(config.asked ?? {}).filter(([path]) => path);
  if (asked.length === 0) return <p className="tf-quiet">No session config was asked for, or it is not applied yet.</p>;
  return (
    <div className="tf-scroll">
      <table aria-label="Session config">
        <thead>
          <tr>
            <th>Field</th>
            <th>As asked</th>
            <th>As applied</th>
          </tr>
        </thead>
        <tbody>
          {asked.map(([path, value]) => {
            const applied = outcomeOf(config.applied, path);
            const passed = outcomeOf(config.passed, path);
            return (
              <tr key={path}>
                <td>
                  <code>{path}</code>
                </td>
                <td>
                  <code>{value}</code>
                </td>
                <td>{applied ?? (passed === undefined ? "not yet" : `passed on: ${passed}`)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Numbers({ numbers, one }: { numbers: Record<string, number>; one: string }) {
  return (
    <dl className="tf-facts">
      {Object.entries(numbers).map(([name, number]) => (
        <React.Fragment key={name}>
          <dt>
            <code>{name}</code>
          </dt>
          <dd>{count(number, one)}</dd>
        </React.Fragment>
      ))}
    </dl>
  );
}

function Placement({ details }: { details: Details }) {
  if (Object.keys(details.placement).length === 0) {
    return (
      <p className="tf-quiet">
        No report: it is written at the end of an attempt whose session config has <code>log_device_placement</code>.
      </p>
    );
  }
  return (
    <>
      <Numbers numbers={details.placement} one="operation" />
      <Numbers numbers={details.transfers} one="tensor" />
      {details.on_cpu.length > 0 && (
        <details>
          <summary>{count(details.on_cpu.length, "operation")} fell to the CPU</summary>
          <p>
            <code>{details.on_cpu.join(", ")}</code>
          </p>
        </details>
      )}
    </>
  );
}

function Checkpoints({ details }: { details: Details }) {
  if (details.checkpoints.length === 0) return <p className="tf-quiet">No checkpoint on the training host.</p>;
  return (
    <div className="tf-scroll">
      <table aria-label="Checkpoints">
        <thead>
          <tr>
            <th>Checkpoint</th>
            <th className="tf-number">Step</th>
            <th className="tf-number">Size</th>
            <th className="tf-number">Saved</th>
            <th>Problem</th>
          </tr>
        </thead>
        <tbody>
          {details.checkpoints.map((each) => (
            <tr key={each.name}>
              <td>
                <code>{each.name}</code>
              </td>
              <td className="tf-number">{each.step?.toLocaleString()}</td>
              <td className="tf-number">{inBytes(each.size_bytes)}</td>
              <td className="tf-number">
                <Age since={each.saved} /> ago
              </td>
              <td>{each.problem}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Files({ path, runId, replica }: { path: string; runId: string; replica: number }) {
  const { data, problem } = usePolled<Details>(`${path}/replicas/${replica}?run_id=${part(runId)}`, POLL_SECONDS);
  return (
    <>
      <Problem text={problem} />
      {data && (
        <>
          <h3>Session config</h3>
          <Config config={data.session_config} />
          <h3>Placement</h3>
          <Placement details={data} />
          <h3>Checkpoints</h3>
          <Checkpoints details={data} />
        </>
      )}
    </>
  );
}

interface DetailsProps {
  gang: Training;
  path: string;
  runId: string;
  replica: number;
  name: string | undefined;
}

export function ReplicaDetails({ gang, path, runId, replica, name }: DetailsProps) {
  return (
    <section aria-labelledby="tf-replica">
      <h2 id="tf-replica">
        Replica {replica}
        {name && ` · ${name}`}
      </h2>
      <h3>Attempts</h3>
      <Attempts gang={gang} replica={replica} />
      {gang.is_here && <Files path={path} runId={runId} replica={replica} />}
    </section>
  );
}
