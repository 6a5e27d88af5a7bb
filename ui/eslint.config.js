import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import { defineConfig } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig({
  files: ["src/**/*.{ts,tsx}"],
  extends: [js.configs.recommended, ts.configs.strictTypeChecked, hooks.configs.flat["recommended-latest"]],
  languageOptions: { parserOptions: { projectService: true } },
  rules: {
    "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    "@typescript-eslint/no-unnecessary-type-parameters": "off", // who asks says what is answered
    "@typescript-eslint/no-unsafe-enum-assignment": "off", // uPlot's enums exist for the compiler only
    "no-undef": "off", // the compiler knows what there is
  },
});
