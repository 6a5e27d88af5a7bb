// Airflow imports this module once and takes each page from the global that has its name in airflow_tf/plugin.py.
import uplot from "uplot/dist/uPlot.min.css";
import { Devices } from "./devices";
import pages from "./pages.css";
import { TrainingTab } from "./training";

const style = document.createElement("style");
style.textContent = uplot + pages;
document.head.append(style);

Object.assign(globalThis, { Devices, Training: TrainingTab });
