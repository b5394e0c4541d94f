// A garbage-collected heap: short-lived objects, and a leak if asked for.
// usage: node heap.js LEAK_KB_PER_SECOND SHORT_LIVED_MB_PER_SECOND
const [leak, short] = process.argv.slice(2).map(Number);
const kept = [];
setInterval(() => {
  for (let i = 0; i < short * 10; i++) new Array(1024).fill(Math.random());
  if (leak) kept.push(Array.from({ length: Math.round((leak * 1024) / 80) }, () => Math.random()));
}, 100);
