// Events in a sound, a clip or a series: a bar for each of them below the values. A click plays its part.
import { chart, rowsOf } from "./chart.js";
import { make, makeMedia, percent } from "./elements.js";

const COLUMNS = 600;  // of the drawn wave of a sound
const RATE = 8000;  // Hz; the wave needs no more

export const unitOf = kind => kind === "series" ? "time steps" : "seconds";

// Returns a function that draws events, and one that plays an event; the latter is null if there is nothing to play.
export function timeline(box, value, kind, colorOf) {
  const isFile = value instanceof Blob, place = make(box, "div", null);
  const player = isFile ? makeMedia(box, kind, "the events") : null;
  const rows = kind === "series" ? rowsOf(value) : null;
  const channels = rows ? [rows[0]].flat().map((_, i) => rows.map(row => [row].flat()[i])) : [];
  const lines = channels.map(values => ({ kind: "past", values, start: 0.5 }));
  let events = [], drawing = { lines }, length = rows?.length ?? 0;
  const play = player && (event => playPart(player, event));
  const show = shown => {
    events = shown;
    const bars = events.map(event => ({
      ...event, name: `${event.label} ${percent(event.score)}`, color: colorOf(event.label), click: play && (() => play(event)),
      title: `${event.label} ${percent(event.score)}, ${event.start} to ${event.stop} ${unitOf(kind)}`,
    }));
    place.replaceChildren();
    chart(place, { ...drawing, bars, length: Math.max(length, ...events.map(({ stop }) => stop)), xLabel: unitOf(kind), alt: "the events over time" });
  };
  if (player) {
    player.addEventListener("error", () => player.remove());
    player.addEventListener("loadedmetadata", () => { length = player.duration; show(events); });
    player.src = URL.createObjectURL(value);
  }
  if (isFile && kind === "audio") {
    // Without a wave, if the browser does not know the format.
    waveOf(value).then(wave => { drawing = wave; length = wave.length; show(events); }).catch(() => {});
  }
  return [show, play];
}

// The player tells its time four times per second, which is too rare to stop at the end of a short event.
function playPart(player, { start, stop }) {
  player.currentTime = start;
  player.play();
  const follow = () => {
    if (player.currentTime >= stop) player.pause();
    if (!player.paused) requestAnimationFrame(follow);
  };
  follow();
}

// The smallest and the largest value of each column of a sound.
async function waveOf(file) {
  const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  const samples = sound.getChannelData(0), size = Math.max(Math.ceil(samples.length / COLUMNS), 1);
  const columns = Array.from({ length: Math.ceil(samples.length / size) }, (_, i) => samples.subarray(i * size, (i + 1) * size));
  const low = columns.map(column => column.reduce((a, b) => Math.min(a, b)));
  const high = columns.map(column => column.reduce((a, b) => Math.max(a, b)));
  const step = size / RATE;
  return { bands: [{ name: "", low, high, start: step / 2 }], step, length: sound.duration, yLabel: "amplitude" };
}
