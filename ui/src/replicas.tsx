// The table of a gang's replicas.
import type { Replica, Training } from "./api";
import { colourOf, MOST_CURVES } from "./colours";
import type { Names } from "./names";
import { Age, State } from "./parts";

const inRate = (rate: number) => `${rate.toLocaleString(undefined, { maximumSignificantDigits: 3 })} /s`;

interface RowProps {
  row: Replica;
  name: string | undefined;
  isDrawn: boolean;
  canDraw: boolean;
  isSelected: boolean;
  onDraw: (replica: number) => void;
  onSelect: (replica: number) => void;
}

function Row({ row, name, isDrawn, canDraw, isSelected, onDraw, onSelect }: RowProps) {
  return (
    <tr className={isSelected ? "tf-selected" : ""}>
      <td>
        <input
          type="checkbox"
          aria-label={`Curve of replica ${row.replica}`}
          style={{ accentColor: colourOf(row.replica) }}
          checked={isDrawn}
          disabled={!canDraw && !isDrawn}
          onChange={() => {
            onDraw(row.replica);
          }}
        />
      </td>
      <td>
        <button
          type="button"
          className="tf-link"
          aria-pressed={isSelected}
          onClick={() => {
            onSelect(row.replica);
          }}
        >
          replica {row.replica}
        </button>
        {name && <span className="tf-quiet"> {name}</span>}
      </td>
      <td>
        <State name={row.state} />
      </td>
      <td className="tf-number">{row.step?.toLocaleString()}</td>
      <td className="tf-number">
        {row.is_slowest && <span className="tf-slowest">slowest </span>}
        {row.rate !== null && inRate(row.rate)}
      </td>
      <td className="tf-number">
        {row.updated && (
          <>
            <Age since={row.updated} /> ago
          </>
        )}
      </td>
      <td className="tf-number">{row.started && <Age since={row.started} until={row.ended} />}</td>
      <td className="tf-number">{row.attempts || ""}</td>
      <td>
        {row.devices.map((device) => (
          <code key={device} className="tf-short" title={device}>
            {device}
          </code>
        ))}
      </td>
      <td>
        {row.cause && row.cause !== "none" && <strong>{row.cause} </strong>}
        {row.message}
      </td>
    </tr>
  );
}

interface Props {
  gang: Training;
  names: Names;
  drawn: number[];
  selected: number;
  onDraw: (replica: number) => void;
  onSelect: (replica: number) => void;
}

export function Replicas({ gang, names, drawn, selected, onDraw, onSelect }: Props) {
  return (
    <div className="tf-scroll tf-low">
      <table aria-label="Replicas">
        <thead>
          <tr>
            <th>Curve</th>
            <th>Replica</th>
            <th>State</th>
            <th className="tf-number">Step</th>
            <th className="tf-number">Rate</th>
            <th className="tf-number">Last sign</th>
            <th className="tf-number">Runs for</th>
            <th className="tf-number">Attempts</th>
            <th>Devices</th>
            <th>Why it ended</th>
          </tr>
        </thead>
        <tbody>
          {gang.replicas.map((row) => (
            <Row
              key={row.replica}
              row={row}
              name={names.get(row.replica)}
              isDrawn={drawn.includes(row.replica)}
              canDraw={drawn.length < MOST_CURVES}
              isSelected={row.replica === selected}
              onDraw={onDraw}
              onSelect={onSelect}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}
