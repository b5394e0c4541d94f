// Pictures of the page: node tests/page/shoot.js FOLDER. Each of a scene, once what it is about is told.
"use strict";
const path = require("node:path");
const { launch, play, until } = require("./browser.js");

const shots = [
  ["leak", (node) => node.problems[0]?.seconds_left && node.gpus[0].forecast?.time_to_exhaustion && node.sequence > 600, [
    ["page.png", "/", 1280, 940, "light"],
    ["page-phone.png", "/", 400, 860, "dark"],
    ["page-gpu.png", "/gpus/0", 1280, 1000, "dark"],
  ]],
  ["hang", (node) => node.gpus[0]?.status === "hung", [["page-hung.png", "/", 1280, 560, "light"]]],
  ["fragmentation", (node) => node.problems.some((problem) => problem.what.includes("is fragmented")) && node.sequence > 300, [
    ["page-fragmentation.png", "/gpus/0", 1280, 900, "light"],
  ]],
];

(async () => {
  const browser = await launch();
  for (const [name, ready, pictures] of shots) {
    const scene = await play(name);
    if (name === "hang") {
      await until(scene.url, "the GPU", (node) => node.gpus[0]?.holders.length === 1 && node.sequence > 300);
      scene.tell("hang 0");
    }
    await until(scene.url, name, ready);
    for (const [file, address, width, height, colorScheme] of pictures) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme });
      const page = await context.newPage();
      await page.goto(scene.url + address);
      await page.screenshot({ path: path.join(process.argv[2], file) });
      await context.close();
    }
    await scene.end();
  }
  await browser.close();
})();
