// Live curves of metrics: only what is new is asked for.
import uPlot from "uplot";
import { ask, part, pause, reasonOf } from "./api";
import type { Curve } from "./api";
import { colourOf, isDashed } from "./colours";
import type { Names } from "./names";
import { Empty, Loading, Problem } from "./parts";
import { gain, namesOf } from "./series";
import type { Have, Line } from "./series";

const POLL_SECONDS = 2;
const HEIGHT = 220;

interface State {
  have: Map<number, Have>;
  isWhole: boolean;
  problem: string;
}

/** Follow the curves of some replicas; those of a training that has ended are read once. */
function useCurves(path: string, runId: string, replicas: number[], isLive: boolean): State {
  const [state, setState] = React.useState<State>({ have: new Map(), isWhole: false, problem: "" });
  const have = React.useRef(new Map<number, Have>());
  const asked = replicas.join();
  React.useEffect(() => {
    if (!asked) return undefined;
    const end = new AbortController();
    const { signal } = end;
    const look = async () => {
      const after = asked.split(",").map((number) => `&after=${number}:${have.current.get(Number(number))?.cursor ?? ""}`);
      const url = `${path}/curves?run_id=${part(runId)}${after.join("")}`;
      const curves = (await ask<{ curves: Curve[] }>(url, "", signal)).data?.curves ?? [];
      const known = new Map(have.current);
      for (const curve of curves) known.set(curve.replica, gain(known.get(curve.replica), curve));
      have.current = known;
      const isWhole = !curves.some((curve) => curve.has_more);
      setState({ have: known, isWhole, problem: "" });
      return isWhole;
    };
    const follow = async () => {
      while (!signal.aborted) {
        let isWhole = true;
        try {
          isWhole = await look();
          if (isWhole && !isLive) return;
        } catch (error) {
          const refusal = reasonOf(error, signal);
          if (!refusal) return;
          setState((old) => ({ ...old, problem: refusal.message }));
          if (refusal.isFinal) return;
        }
        if (isWhole) await pause(POLL_SECONDS, signal);
      }
    };
    void follow();
    return () => {
      end.abort();
    };
  }, [path, runId, asked, isLive]);
  return state;
}

const root = document.documentElement;

function onTheme(notify: () => void) {
  const observer = new MutationObserver(notify);
  observer.observe(root, { attributeFilter: ["class"] });
  return () => {
    observer.disconnect();
  };
}

const themeColour = (name: string) => getComputedStyle(root).getPropertyValue(`--chakra-colors-${name}`).trim() || "#888";

/** How a chart looks; a string, so that it is made anew only when the look changes. */
const useTheme = () => React.useSyncExternalStore(onTheme, () => `${themeColour("fg-muted")} ${themeColour("border")}`);

const inShort = (value: number | null) => (value === null ? "–" : String(Number(value.toPrecision(5))));

/** A tick of an axis; a logarithmic one has some without a text. */
const inTick = (value: number | null) => (value === null ? "" : inShort(value));

function options(replicas: number[], labels: string[], isLog: boolean, width: number): uPlot.Options {
  const [stroke, grid] = [themeColour("fg-muted"), themeColour("border")];
  const axis: uPlot.Axis = { stroke, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "airflow_tf" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
    axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(inTick) }],
    series: [
      { label: "step", value: (_, step: number | null) => step?.toLocaleString() ?? "–" },
      ...replicas.map((replica, index) => ({
        label: labels[index] ?? "",
        stroke: colourOf(replica),
        width: 1.5,
        spanGaps: true,
        ...(isDashed(replica) ? { dash: [6, 4] } : {}),
        value: (_: uPlot, value: number | null) => inShort(value),
      })),
    ],
  };
}

/** Give a chart its data; one in which the user has zoomed stays where it is. */
function show(plot: uPlot, data: uPlot.AlignedData) {
  const steps = (plot.data as number[][])[0] ?? []; // none before the first data
  const { min, max } = plot.scales.x ?? {};
  const isZoomed = min != null && max != null && (min > (steps[0] ?? min) || max < (steps[steps.length - 1] ?? max));
  if (!isZoomed) {
    plot.setData(data);
    return;
  }
  plot.batch(() => {
    plot.setData(data, false);
    plot.setScale("x", { min, max });
  });
}

interface ChartProps {
  name: string;
  lines: Map<number, Line>;
  names: Names;
  isLog: boolean;
}

function Chart({ name, lines, names, isLog }: ChartProps) {
  const place = React.useRef<HTMLDivElement>(null);
  const plot = React.useRef<uPlot | null>(null);
  const theme = useTheme();
  const replicas = [...lines.keys()].join();
  const called = [...lines.keys()].map((replica) => names.get(replica) ?? `replica ${replica}`);
  const labels = JSON.stringify(called); // compared by what it says
  const isPositive = [...lines.values()].every(([, values]) => values.every((value) => value > 0));
  const distribution = isLog && isPositive;
  const data = React.useMemo(() => uPlot.join([...lines.values()]), [lines]);
  React.useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const numbers = replicas.split(",").map(Number);
    const made = new uPlot(options(numbers, JSON.parse(labels) as string[], distribution, element.clientWidth), undefined, element);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      made.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [replicas, labels, distribution, theme]);
  React.useEffect(() => {
    if (plot.current) show(plot.current, data);
  }, [data, replicas, labels, distribution, theme]);
  const last = [...lines].map(([replica, [, values]]) => `replica ${replica} ${inShort(values[values.length - 1] ?? null)}`);
  return (
    <figure className="tf-chart" role="img" aria-label={`${name}: ${last.join(", ")}`}>
      <figcaption>{name}</figcaption>
      <div ref={place} />
    </figure>
  );
}

function linesOf(have: Map<number, Have>, replicas: number[], name: string): Map<number, Line> {
  const found = new Map<number, Line>();
  for (const replica of replicas) {
    const line = have.get(replica)?.lines.get(name);
    if (line) found.set(replica, line);
  }
  return found;
}

interface CurvesProps {
  path: string;
  runId: string;
  replicas: number[];
  names: Names;
  isLive: boolean;
}

export function Curves({ path, runId, replicas, names, isLive }: CurvesProps) {
  const { have, isWhole, problem } = useCurves(path, runId, replicas, isLive);
  const [isLog, setLog] = React.useState(false);
  const chosen = replicas.join();
  const charts = React.useMemo(() => {
    const numbers = chosen ? chosen.split(",").map(Number) : [];
    const drawn = numbers.flatMap((replica) => have.get(replica) ?? []);
    return namesOf(drawn).map((name) => ({ name, lines: linesOf(have, numbers, name) }));
  }, [have, chosen]);
  return (
    <section aria-labelledby="tf-metrics">
      <div className="tf-row">
        <h2 id="tf-metrics">Metrics</h2>
        <label className="tf-quiet">
          <input
            type="checkbox"
            checked={isLog}
            onChange={(event) => {
              setLog(event.target.checked);
            }}
          />{" "}
          logarithmic
        </label>
      </div>
      <Problem text={problem} />
      {!chosen && <p className="tf-quiet">No curve is chosen in the table above.</p>}
      {chosen && !isWhole && !problem && have.size === 0 && <Loading />}
      {chosen && isWhole && charts.length === 0 && (
        <Empty title="No metrics yet.">
          A program appends lines like <code>{'{"step": 50, "loss": 0.3}'}</code> to the file that{" "}
          <code>AIRFLOW_TF_METRICS_FILE</code> names, or writes event files of TensorBoard.
        </Empty>
      )}
      <div className="tf-charts">
        {charts.map(({ name, lines }) => (
          <Chart key={name} name={name} lines={lines} names={names} isLog={isLog} />
        ))}
      </div>
    </section>
  );
}
