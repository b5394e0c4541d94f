// Pictures of the page of a node in trouble (src/serve/testdata/page.html, which a test of the page keeps), compared with those
// in tests/page/pixels. They depend on the release of Chromium and on the font, so another release is not compared.
"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");

const root = path.resolve(__dirname, "../..");
const folder = path.join(__dirname, "pixels");
const told = path.join(folder, "chromium.txt");
const FONT = "DejaVu Sans";
const SHOTS = [[320, "dark"], [1280, "light"], [1280, "dark"], [3840, "light"]];
/** A pixel differs if a channel does by more than this of 255; pictures differ if more than this share of pixels does. */
const CHANNEL = 24;
const SHARE = 0.001;

/** The page with its style sheet, without its script: nothing in it depends on the time. */
const html = () => {
  const text = fs.readFileSync(path.join(root, "src/serve/testdata/page.html"), "utf8");
  const style = fs.readFileSync(path.join(root, "src/serve/page/page.css"), "utf8");
  assert.ok(text.includes("…</style>"), "the recorded page has a place for the style sheet");
  return text.replace("…</style>", () => `${style}* { font-family: "${FONT}" !important; }</style>`)
    .replace(/<script[^>]*><\/script>/g, "");
};

/** What two pictures differ in, computed by the browser: their sizes, or the share of pixels that differ. */
const difference = (page, one, other) => page.evaluate(async ([one, other, channel]) => {
  const read = async (data) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, 0, 0);
    return context.getImageData(0, 0, bitmap.width, bitmap.height);
  };
  const [a, b] = [await read(one), await read(other)];
  if (a.width !== b.width || a.height !== b.height) return `${a.width}x${a.height} and ${b.width}x${b.height}`;
  let count = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    count += [0, 1, 2].some((of) => Math.abs(a.data[at + of] - b.data[at + of]) > channel);
  }
  return count / (a.width * a.height);
}, [one.toString("base64"), other.toString("base64"), CHANNEL]);

/** Compares, or writes the pictures if `update` is set; says plainly where it compares nothing. */
const compare = async (browser, update) => {
  const here = `Chromium ${browser.version()}, ${FONT}`;
  const recorded = fs.existsSync(told) ? fs.readFileSync(told, "utf8").trim() : "no picture";
  if (!update && here !== recorded) {
    const why = `skipped: pictures of the page were made with ${recorded}, and this is ${here} (tests/page/run --update)`;
    console.log(`   ${why}`);
    if (process.env.MEMWARDEN_SKIPPED) fs.appendFileSync(process.env.MEMWARDEN_SKIPPED, `${why}\n`);
    return;
  }
  fs.mkdirSync(folder, { recursive: true });
  const wrong = [];
  for (const [width, colorScheme] of SHOTS) {
    const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme, javaScriptEnabled: true });
    const page = await context.newPage();
    await page.setContent(html());
    const shot = await page.screenshot({ fullPage: true, animations: "disabled" });
    const file = path.join(folder, `node-${width}-${colorScheme}.png`);
    if (update) {
      fs.writeFileSync(file, shot);
    } else {
      await page.goto("about:blank");
      const differs = await difference(page, fs.readFileSync(file), shot);
      if (typeof differs === "string" || differs > SHARE) {
        const now = path.join(folder, `node-${width}-${colorScheme}.now.png`);
        fs.writeFileSync(now, shot);
        wrong.push(`${file}: ${typeof differs === "string" ? differs : `${(differs * 100).toFixed(2)} % of pixels`}; see ${now}`);
      }
    }
    await context.close();
  }
  if (update) fs.writeFileSync(told, `${here}\n`);
  assert.deepEqual(wrong, []);
};

module.exports = { compare };
