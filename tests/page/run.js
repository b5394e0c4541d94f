// The page of the real daemon with fake GPUs, in headless Chromium: every view, every width, dark and light, live updates,
// accessibility. Started by tests/page/run.
"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { launch, play, until, open, PATIENCE } = require("./browser.js");
const { compare } = require("./pixels.js");

const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [320, 400, 1280, 3840];

/** What every page is held to: nothing from elsewhere, no fault, nothing wider than the window, and axe's rules. */
const check = async (browser, url, what) => {
  const page = await open(browser, url, { viewport: { width: 1280, height: 800 } });
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 800 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${what} at ${width}: ${wide} pixels too wide`);
  }
  // Chromium itself writes to the console that a page does not exist.
  const faults = page.faults.filter((fault) => page.status !== 404 || !fault.includes("status of 404"));
  assert.deepEqual(faults, [], what);
  await page.context().close();
  // axe is no part of the page: only this visit bypasses the policy.
  const seen = await open(browser, url, { viewport: { width: 1280, height: 800 }, bypassCSP: true });
  await seen.evaluate(axe);
  for (const colorScheme of ["light", "dark"]) {
    await seen.emulateMedia({ colorScheme });
    const found = await seen.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const said = found.violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html + node.failureSummary).join("; ")}`);
    assert.deepEqual(said, [], `${what}, ${colorScheme}`);
  }
  await seen.context().close();
};

const text = (page, selector) => page.locator(selector).first().innerText();
const waitText = (page, selector, part) =>
  page.waitForFunction(([selector, part]) => document.querySelector(selector)?.innerText.includes(part), [selector, part],
    { timeout: PATIENCE });

const update = process.argv.includes("--update");
const part = process.argv.slice(2).find((word) => !word.startsWith("--")) || (update ? "looks as it is recorded" : "");

const tests = {
  async "the page of a node in trouble looks as it is recorded"(browser) {
    await compare(browser, update);
  },

  async "a leaking GPU: what, whose and how long, and the way down to the rank"(browser) {
    const scene = await play("leak");
    const node = await until(scene.url, "the leak", (node) => node.verdict.sentence.includes("leaking"));
    // A leak is a warning, and critical once exhaustion within 15 minutes is more likely than not.
    assert.ok(["warning", "critical"].includes(node.verdict.health), node.verdict.health);
    const page = await open(browser, scene.url);
    // In one call: the page may change from warning to critical at any time.
    const [verdict, title] = await page.evaluate(() => [document.querySelector("#verdict").innerText, document.title]);
    const word = verdict.includes("critical") ? "critical" : "warning";
    for (const part of [word, "GPU 0", "runs out of memory in", "leaking", "llama70b", "alice"]) {
      assert.ok(verdict.includes(part), `${part} in ${verdict}`);
    }
    const sign = word === "critical" ? "!! " : "! ";
    assert.ok(title.startsWith(sign), title);
    await page.click("#problems a");
    await page.waitForURL("**/gpus/0");
    await page.locator("#holders a", { hasText: "slurm/4711" }).click();
    await page.waitForURL("**/workloads/slurm%2F4711");
    // The address changes before the view is there.
    await page.locator("#processes").waitFor();
    await waitText(page, "#protection", "a leak is confirmed");
    await page.locator("#ranks tbody a").first().click();
    await page.waitForURL("**?rank=0");
    await waitText(page, "#rank", "tokens per second");
    await page.click("text=2h");
    await page.waitForURL("**range=2h**rank=0");
    assert.deepEqual(page.faults, []);
    for (const path of ["/", "/gpus/0", "/workloads", "/workloads/slurm%2F4711", "/workloads/slurm%2F4711?rank=0",
      "/protection", "/events", "/incidents", "/incidents/x", "/gpus/9", "/workloads/none"]) {
      await check(browser, scene.url + path, path);
    }
    await scene.end();
  },

  async "a GPU that hangs is told while the page is open, and a daemon that ends too"(browser) {
    const scene = await play("hang");
    await until(scene.url, "the GPU", (node) => node.gpus.length === 4 && node.gpus[0].holders.length === 1);
    const page = await open(browser, scene.url);
    await page.evaluate(() => { window.same = document.querySelector("#verdict"); });
    await page.focus("nav a:last-child");
    scene.tell("hang 0");
    await waitText(page, "#verdict", "GPU 0 does not respond");
    const verdict = await text(page, "#verdict");
    for (const part of ["critical", "unknown", "last used by run llama70b of user alice"]) {
      assert.ok(verdict.includes(part), `${part} in ${verdict}`);
    }
    assert.ok((await text(page, "#gpus tbody tr")).includes("hung"));
    // It was updated in place: the element that is read aloud is the same, and the focus stays.
    assert.ok(await page.evaluate(() => window.same === document.querySelector("#verdict")));
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Events");
    await check(browser, scene.url, "a node with a hung GPU");
    assert.deepEqual(page.faults, []);
    await scene.end();
    await waitText(page, ".lost", "does not answer");
    assert.ok((await page.title()).startsWith("? "));
    assert.ok(await page.evaluate(() => document.body.classList.contains("gone")));
  },

  async "a fragmented allocator says how much is lost and whose it is"(browser) {
    const scene = await play("fragmentation");
    const told = (node) => node.problems.find((problem) => problem.what.includes("is fragmented"));
    const node = await until(scene.url, "the fragmentation", told);
    assert.equal(told(node).owner.user, "alice");
    const page = await open(browser, scene.url + "/gpus/0");
    assert.ok((await text(page, "#problems")).includes("cannot be released"));
    assert.ok(await page.locator(".stack .torn").isVisible());
    await check(browser, scene.url, "a fragmented node");
    await scene.end();
  },

  async "a hidden page asks for nothing, and a shown one at once"(browser) {
    const scene = await play("eight");
    await until(scene.url, "the workloads", (node) => node.workloads.length >= 50 && node.gpus.length === 8);
    const page = await open(browser, scene.url);
    await page.waitForResponse(scene.url + "/", { timeout: PATIENCE });
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await page.waitForTimeout(500);
    const before = page.requested.length;
    await page.waitForTimeout(5000);
    assert.equal(page.requested.length, before, "a hidden page asked");
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => false });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await page.waitForResponse(scene.url + "/", { timeout: PATIENCE });
    assert.deepEqual(page.faults, []);
    // One round trip is enough to draw it, and it is small.
    const packed = await fetch(scene.url, { headers: { "accept-encoding": "gzip" } });
    const bytes = Number(packed.headers.get("content-length"));
    assert.ok(bytes > 0 && bytes <= 100 * 1024, `${bytes} bytes`);
    const blocking = await page.evaluate(() =>
      performance.getEntriesByType("resource").filter((entry) => entry.renderBlockingStatus === "blocking").map((entry) => entry.name));
    assert.deepEqual(blocking, []);
    const tag = packed.headers.get("etag");
    const again = await until(scene.url, "an answer", () => true) && await fetch(scene.url, { headers: { "if-none-match": tag } });
    assert.ok([200, 304].includes(again.status));
    console.log(`   8 GPUs, 50 workloads: ${bytes} bytes gzipped`);
    await check(browser, scene.url, "8 GPUs and 50 workloads");
    await scene.end();
  },

  async "without scripts the page is complete and reloads itself"(browser) {
    const scene = await play("hostile");
    await until(scene.url, "the workloads", (node) => node.workloads.length === 2 && node.workloads.some((own) => own.run));
    const page = await open(browser, scene.url, { javaScriptEnabled: false });
    assert.equal(await page.locator("#workloads tbody tr").count(), 2);
    assert.equal(await page.locator("noscript meta").count() + await page.locator("meta[http-equiv=refresh]").count() > 0, true);
    const names = await page.locator("#workloads tbody th").allInnerTexts();
    assert.ok(names.some((name) => name.includes("<img_src=x_onerror=alert(1)>")), names.join());
    await page.context().close();
    for (const path of ["/", "/workloads", "/events", "/gpus/0"]) await check(browser, scene.url + path, `hostile ${path}`);
    const shown = await open(browser, scene.url);
    await shown.locator("#workloads tbody th a", { hasText: "<img" }).click();
    await shown.locator("h2.title", { hasText: "<img" }).waitFor();
    assert.deepEqual(shown.faults, []);
    assert.equal(await shown.locator("img").count(), 0);
    await scene.end();
  },

  async "8 GPUs, 300 workloads and 64 ranks"(browser) {
    const scene = await play("large", "--interval", "1");
    await until(scene.url, "the workloads", (node) => node.workloads.length >= 300 && node.gpus.length === 8
      && node.workloads.filter((own) => own.ranks.length).length === 64);
    const page = await open(browser, scene.url + "/workloads");
    assert.ok(await page.locator("#workloads tbody tr").count() >= 300);
    // The gauge is that of the frame before: the ranks are in it one sample after they are on the page.
    let omitted = 0;
    for (const begun = Date.now(); omitted <= 300 && Date.now() - begun < PATIENCE; await new Promise((done) => setTimeout(done, 200))) {
      const metrics = await (await fetch(`${scene.url}/metrics`)).text();
      omitted = Number(/^memwarden_history_series_omitted (\d+)/m.exec(metrics)[1]);
    }
    assert.ok(omitted > 300, `series without a recent past: ${omitted}`);
    assert.ok((await text(page, "footer")).includes("have no history"));
    for (const path of ["/", "/workloads", "/gpus/3"]) await check(browser, scene.url + path, `large ${path}`);
    await scene.end();
  },

  async "a node with nothing at all"(browser) {
    const scene = await play("empty");
    await until(scene.url, "a frame", (node) => node.sequence > 0);
    const page = await open(browser, scene.url);
    assert.ok((await text(page, "#gpus")).includes("No GPU was found"));
    assert.ok((await text(page, "#workloads")).includes("No workload is running"));
    for (const path of ["/", "/workloads", "/protection", "/events", "/incidents"]) {
      await check(browser, scene.url + path, `empty ${path}`);
    }
    await scene.end();
  },
};

(async () => {
  const browser = await launch();
  const wanted = Object.entries(tests).filter(([name]) => name.includes(part));
  let failed = 0;
  for (const [name, test] of wanted) {
    const begun = Date.now();
    try {
      await test(browser);
      console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    }
  }
  await browser.close();
  process.exit(failed ? 1 : 0);
})();
