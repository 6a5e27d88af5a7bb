// Builds ../airflow_tf/web/pages.js, which is committed; --check tells whether it is what the sources give.
// Its first line holds the digests by which a test without Node sees that sources and bundle belong together.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const target = "../airflow_tf/web/pages.js";
const sources = ["build.mjs", "package-lock.json", ...readdirSync("src").map((name) => `src/${name}`)].sort();

const digest = (texts) => {
  const hash = createHash("sha256");
  texts.forEach((text) => hash.update(text));
  return hash.digest("hex");
};

const { outputFiles } = await build({
  entryPoints: ["src/main.tsx"],
  bundle: true,
  charset: "utf8",
  format: "esm",
  legalComments: "inline",
  loader: { ".css": "text" },
  minify: true,
  target: "es2022",
  write: false,
});
const body = outputFiles[0].text;
const read = (name) => readFileSync(name, "utf8");
const made = `/* built by npm run build in ui: sources ${digest(sources.map(read))} bundle ${digest([body])} */\n${body}`;

if (!process.argv.includes("--check")) {
  writeFileSync(target, made);
} else if (read(target) !== made) {
  console.error(`${target} is not what the sources give: npm run build`);
  process.exit(1);
}
