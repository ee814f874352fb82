// Records whose content their number and version give, replaced and compared round after round:
//   node records.js RECORDS ROUNDS      prints "OK checksum"
'use strict';
const [records, rounds] = process.argv.slice(2).map(Number);
const random = (x) => (x * 48271) % 2147483647;
function content(i, version) {
  let x = random(i * 31 + version * 7919 + 1);
  let words = '';
  for (let n = 0; n < 6; n++) words += (x = random(x)).toString(16) + ' ';
  return `record ${i} version ${version} ` + words.repeat(8);
}
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
async function main() {
  const versions = new Int32Array(records);
  const strings = new Map(), objects = [], buffers = [];
  const make = (i) => {
    const text = content(i, versions[i]);
    strings.set(i, Buffer.from(text).toString('latin1')); // flat, not a rope
    objects[i] = { i, version: versions[i], parts: text.split(' '), half: i / 2 + 0.25 };
    if (i % 8 === 0) buffers[i] = Buffer.from(text.repeat(8));
  };
  for (let i = 0; i < records; i++) make(i);
  let sum = 0;
  for (let round = 0; round < rounds; round++) {
    await sleep(500);
    for (let i = 0; i < records; i++) {
      const text = content(i, versions[i]), o = objects[i];
      const same = strings.get(i) === text && o.i === i && o.version === versions[i] &&
        o.half === i / 2 + 0.25 && o.parts.join(' ') === text &&
        (i % 8 !== 0 || buffers[i].equals(Buffer.from(text.repeat(8))));
      if (!same) { console.log(`BAD record ${i} in round ${round}`); process.exit(1); }
      sum = (sum * 31 + text.length + text.charCodeAt(30)) % 2147483647;
      if (i % 3 === round % 3) { versions[i]++; make(i); }
    }
    if (global.gc) global.gc();
  }
  console.log(`OK ${sum}`);
}
main();
