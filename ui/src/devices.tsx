// The page of all hosts and devices: who holds what, who waits.
import { usePolled } from "./api";
import type { Device, DevicesPage, Host, Waiter } from "./api";
import { Age, Bar, count, Empty, GangLink, inBytes, inSeconds, Loading, Problem, State, tone } from "./parts";

const POLL_SECONDS = 3;

/** Keep the objects of devices that have not changed, so that only the others are drawn anew. */
function keepEqual(old: Map<string, { text: string; device: Device }>, devices: Device[]) {
  return new Map(
    devices.map((device) => {
      const key = `${device.host}\n${device.uuid}`;
      const text = JSON.stringify(device);
      const known = old.get(key);
      return [key, known?.text === text ? known : { text, device }];
    }),
  );
}

function useStable(devices: Device[] | undefined): Device[] {
  const [seen, setSeen] = React.useState({ devices, known: keepEqual(new Map(), devices ?? []) });
  if (seen.devices !== devices) setSeen({ devices, known: keepEqual(seen.known, devices ?? []) });
  return React.useMemo(() => [...seen.known.values()].map(({ device }) => device), [seen]);
}

function Memory({ device }: { device: Device }) {
  const { memory_bytes: all, free_bytes: free } = device;
  if (!all) return null;
  if (free === null) return <div className="tf-bar tf-quiet">{inBytes(all)} of memory</div>;
  return <Bar label="memory" part={(all - free) / all} text={`${inBytes(all - free)} of ${inBytes(all)}`} />;
}

const Tile = React.memo(function Tile({ device }: { device: Device }) {
  return (
    <li className="tf-tile" style={tone(device.state)}>
      <div className="tf-row">
        <strong title={device.name}>{device.name}</strong>
        <State name={device.state} />
      </div>
      <code title={device.uuid}>{device.uuid}</code>
      <Memory device={device} />
      {device.utilization_percent !== null && (
        <Bar label="in use" part={device.utilization_percent / 100} text={`${device.utilization_percent} %`} />
      )}
      {device.holders.map((holder) => (
        <div key={`${holder.gang.run_id}/${holder.gang.task_id}/${holder.replica}`} className="tf-holder">
          <GangLink gang={holder.gang} replica={holder.replica} />
          <span className="tf-quiet">
            {holder.share_percent < 100 && `${holder.share_percent} % · `}
            {holder.state !== "confirmed" && `${holder.state} · `}
            for <Age since={holder.since} />
          </span>
        </div>
      ))}
      {device.reason && <p className="tf-reason">{device.reason}</p>}
    </li>
  );
});

function HostSection({ name, seen, devices }: { name: string; seen: string; devices: Device[] }) {
  const free = devices.filter((device) => device.state === "free").length;
  return (
    <details open className="tf-host">
      <summary>
        <h2>{name}</h2>
        <span className="tf-quiet">
          {count(devices.length, "device")}, {free} free
          {seen && (
            <>
              {" "}
              · last run looked <Age since={seen} /> ago
            </>
          )}
        </span>
      </summary>
      <ul className="tf-tiles">
        {devices.map((device) => (
          <Tile key={device.uuid} device={device} />
        ))}
      </ul>
    </details>
  );
}

function Queue({ queue }: { queue: Waiter[] }) {
  return (
    <section aria-labelledby="tf-queue">
      <h2 id="tf-queue">Queue</h2>
      {queue.length === 0 ? (
        <p className="tf-quiet">Nobody waits for devices.</p>
      ) : (
        <div className="tf-scroll">
          <table>
            <thead>
              <tr>
                <th>Host</th>
                <th className="tf-number">Place</th>
                <th>Waits</th>
                <th className="tf-number">Devices</th>
                <th className="tf-number">Priority</th>
                <th className="tf-number">Since</th>
                <th>What is missing</th>
              </tr>
            </thead>
            <tbody>
              {queue.map((waiter) => (
                <tr key={`${waiter.host}/${waiter.position}`}>
                  <td>{waiter.host}</td>
                  <td className="tf-number">{waiter.position}</td>
                  <td>
                    <GangLink gang={waiter.gang} />
                  </td>
                  <td className="tf-number">{waiter.wanted}</td>
                  <td className="tf-number">{waiter.priority}</td>
                  <td className="tf-number">{inSeconds(waiter.waited_seconds)}</td>
                  <td>{waiter.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function matches(device: Device, words: string[], state: string): boolean {
  if (state && device.state !== state) return false;
  const holders = device.holders.map(({ gang }) => `${gang.dag_id} ${gang.run_id} ${gang.task_id}`).join(" ");
  const text = `${device.host} ${device.uuid} ${device.kind} ${device.name} ${device.state} ${holders}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function byHost(hosts: Host[], devices: Device[]): [string, Device[]][] {
  const found = new Map<string, Device[]>(hosts.map(({ name }) => [name, []]));
  for (const device of devices) {
    const known = found.get(device.host);
    if (known) known.push(device);
    else found.set(device.host, [device]);
  }
  return [...found];
}

interface FilterProps {
  devices: Device[];
  text: string;
  state: string;
  onText: (text: string) => void;
  onState: (state: string) => void;
}

function Filter({ devices, text, state, onText, onState }: FilterProps) {
  const counts = new Map<string, number>();
  for (const device of devices) counts.set(device.state, (counts.get(device.state) ?? 0) + 1);
  return (
    <div className="tf-filter">
      <input
        type="search"
        aria-label="Search devices"
        placeholder="Host, device, DAG, run …"
        value={text}
        onChange={(event) => {
          onText(event.target.value);
        }}
      />
      {[...counts].sort().map(([name, number]) => (
        <button
          key={name}
          type="button"
          className="tf-chip"
          style={tone(name)}
          aria-pressed={state === name}
          onClick={() => {
            onState(state === name ? "" : name);
          }}
        >
          {number} {name}
        </button>
      ))}
    </div>
  );
}

function Hosts({ page }: { page: DevicesPage }) {
  const [text, setText] = React.useState("");
  const [state, setState] = React.useState("");
  const devices = useStable(page.devices);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = devices.filter((device) => matches(device, words, state));
  const seen = new Map(page.hosts.map((host) => [host.name, host.seen]));
  const isFiltered = words.length > 0 || state !== "";
  const hosts = byHost(isFiltered ? [] : page.hosts, shown);
  return (
    <>
      <Filter devices={devices} text={text} state={state} onText={setText} onState={setState} />
      {hosts.length === 0 && (
        <Empty title="No device is like that.">
          <button
            type="button"
            className="tf-button"
            onClick={() => {
              setText("");
              setState("");
            }}
          >
            Show all
          </button>
        </Empty>
      )}
      {hosts.map(([name, each]) => (
        <HostSection key={name} name={name} seen={seen.get(name) ?? ""} devices={each} />
      ))}
    </>
  );
}

export function Devices() {
  const { data, problem } = usePolled<DevicesPage>("airflow_tf/devices", POLL_SECONDS);
  return (
    <main className="tf-page">
      <h1>Devices</h1>
      <Problem text={problem || (data?.problem ?? "")} />
      {data === null && !problem && <Loading />}
      {data && data.hosts.length === 0 && data.devices.length === 0 && (
        <Empty title="No device is known.">
          A host and its devices are known from the first run that looks at them, or by <code>airflow tf hosts register</code>.
        </Empty>
      )}
      {data && data.hosts.length + data.devices.length > 0 && (
        <>
          <Queue queue={data.queue} />
          <Hosts page={data} />
        </>
      )}
    </main>
  );
}
