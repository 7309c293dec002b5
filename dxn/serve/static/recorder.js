// Recording with the microphone, as a WAV file: browsers record in other formats.
export class Recorder {
  #media = null;

  get isRunning() {
    return this.#media !== null;
  }

  async start() {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const chunks = [];
    this.#media = new MediaRecorder(stream);
    this.#media.addEventListener("dataavailable", event => chunks.push(event.data));
    this.#media.chunks = chunks;
    this.#media.start();
  }

  async stop() {
    const media = this.#media;
    this.#media = null;
    await new Promise(resolve => {
      media.addEventListener("stop", resolve);
      media.stop();
    });
    for (const track of media.stream.getTracks()) track.stop();
    const context = new AudioContext();
    try {
      const sound = await context.decodeAudioData(await new Blob(media.chunks).arrayBuffer());
      return new File([wavOf(sound)], "recording.wav", { type: "audio/wav" });
    } finally {
      await context.close();
    }
  }
}

// The first channel as 16-bit samples after a header of 44 bytes.
function wavOf(sound) {
  const samples = sound.getChannelData(0), size = 2 * samples.length;
  const view = new DataView(new ArrayBuffer(44 + size));
  const write = (position, text) => [...text].forEach((letter, i) => view.setUint8(position + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, sound.sampleRate, true);
  view.setUint32(28, 2 * sound.sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, size, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true));
  return view.buffer;
}
