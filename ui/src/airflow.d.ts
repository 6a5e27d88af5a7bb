// What Airflow's user interface gives to its plugins as globals, beside React.
import type * as R from "react";

declare global {
  const ReactRouterDOM: {
    Link: R.ComponentType<{ to: string; className?: string; children: R.ReactNode }>;
  };
}
