// Chromium without a network, a daemon with a scene, and what every visit of a page is held to.
"use strict";
const { spawn } = require("node:child_process");
const path = require("node:path");
const { chromium } = require("playwright-core");

const root = path.resolve(__dirname, "../..");
const built = path.resolve(root, process.env.MEMWARDEN_BUILT || "target/debug");
const PATIENCE = Number(process.env.PATIENCE || 60000);

const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

/** Plays a scene; resolves to its address, and what ends it or tells it something. */
const play = (name, ...more) => new Promise((resolve, reject) => {
  const child = spawn("python3", [path.join(__dirname, "scene.py"), name, "--memwarden", path.join(built, "memwarden"),
    "--library", path.join(built, "deps/libfake_nvml.so"), ...more], { stdio: ["pipe", "pipe", "inherit"] });
  child.once("exit", (code) => reject(new Error(`the scene ${name} ended: ${code}`)));
  child.stdout.once("data", (line) => resolve({
    ...JSON.parse(line),
    tell: (words) => child.stdin.write(words + "\n"),
    end: () => new Promise((ended) => { child.once("exit", ended); child.stdin.end(); }),
  }));
});

/** Asks again until `good` accepts what `/api/v1/node` says. */
const until = async (url, what, good) => {
  const limit = Date.now() + PATIENCE;
  for (;;) {
    const answer = await fetch(url + "/api/v1/node");
    const node = await answer.json();
    if (good(node)) return node;
    if (Date.now() > limit) throw new Error(`waited for ${what}: ${JSON.stringify(node.verdict)} ${JSON.stringify(node.problems)}`);
    await new Promise((done) => setTimeout(done, 200));
  }
};

/** A page of its own that notes what must not happen. */
const open = async (browser, url, options = {}) => {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.faults = [];
  page.requested = [];
  page.on("console", (message) => page.faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => page.faults.push(`script: ${error.message}`));
  page.on("dialog", (dialog) => { page.faults.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => {
    page.requested.push(request.url());
    if (!request.url().startsWith(url.origin || new URL(url).origin)) page.faults.push(`request: ${request.url()}`);
  });
  const answer = await page.goto(url);
  page.status = answer.status();
  return page;
};

module.exports = { launch, play, until, open, PATIENCE };
