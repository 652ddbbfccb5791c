/* The model in this page answers images. `web.py` writes the blocks that are read here: about, wasm, model. */

const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const LOADING = "The model is being loaded …";

/** Return the bytes of a block: base64 of gzip. The block goes, for it may be large. */
async function unpack(id) {
  const text = atob($(id).textContent), packed = new Uint8Array(text.length);
  $(id).remove();
  for (let n = 0; n < text.length; n++) packed[n] = text.charCodeAt(n);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function open() {
  const lacking = ["WebAssembly", "DecompressionStream"].filter((name) => !(name in window));
  if (lacking.length) throw new Error(`This browser has no ${lacking.join(" and no ")}, without which the model cannot run. Open the page in a browser of 2023 or later.`);
  const { env, InferenceSession } = window.onnxruntime, started = performance.now();
  const [wasmBinary, model] = await Promise.all(["wasm", "model"].map(unpack));
  Object.assign(env.wasm, { numThreads: 1, wasmBinary }); // pages from a disk share no memory between threads
  const session = await InferenceSession.create(model, { executionProviders: ["wasm"] });
  if ($("status").textContent === LOADING) say(`The model is ready after ${Math.round(performance.now() - started)} ms. Its answer will be here.`);
  return session;
}

let before = Promise.resolve();

/** Run the model on uint8 pixels of the dimensions (batch, height, width, 3): its outputs by their names. */
window.compute = (pixels, dimensions) => {
  const outputs = before.then(async () => {
    const session = await opened, images = new window.onnxruntime.Tensor("uint8", ...resized(pixels, dimensions));
    return session.run({ images });
  });
  before = outputs.catch(() => {}); // one after the other
  return outputs;
};

/** Read an image as Python does: upright, its pixels as they are stored, transparency on white. */
async function read(file) {
  const picture = await createImageBitmap(file, { colorSpaceConversion: "none" }).catch(() => {
    throw new Error(`${file.name || "This"} is not an image that this browser can read. Choose a JPEG, PNG or WebP file.`);
  });
  const { width, height } = picture, rows = Math.min(height, 256), pixels = new Uint8Array(3 * width * height);
  const context = Object.assign(document.createElement("canvas"), { width, height: rows }).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  for (let top = 0, to = 0; top < height; top += rows) { // piece by piece: a canvas may be smaller than a photograph
    context.fillRect(0, 0, width, rows);
    context.drawImage(picture, 0, -top);
    const { data } = context.getImageData(0, 0, width, Math.min(rows, height - top));
    for (let from = 0; from < data.length; from += 4) {
      for (let channel = 0; channel < 3; channel++) pixels[to++] = data[from + channel];
    }
  }
  picture.close();
  return { pixels, height, width };
}

window.ask = async (file) => {
  await opened;
  const { pixels, height, width } = await read(file);
  const outputs = await window.compute(pixels, [1, height, width, 3]), answer = { size: [height, width] };
  if (outputs.probabilities?.dims.length === 2) {
    const scores = Array.from(outputs.probabilities.data), best = scores.map((_, n) => n).sort((a, b) => scores[b] - scores[a]);
    const label = (n) => (about.labels ? about.labels[n] : `class ${n}`);
    answer.predictions = best.slice(0, about.top).map((n) => ({ label: label(n), probability: scores[n] }));
  } else if (outputs.numbers) {
    const values = Array.from(outputs.numbers.data), last = about.labels && about.labels.length - 1;
    const place = (value, n) => (about.task === "ordinal" ? Math.min(Math.max(Math.round(value), 0), last) : n);
    answer.numbers = values.map((value, n) => ({ name: about.labels ? about.labels[place(value, n)] : `number ${n}`, value }));
  } else if (outputs.probabilities) answer.probabilities = Array.from(outputs.probabilities.data);
  else answer.features = Array.from((outputs.features ?? outputs.outputs).data);
  answer.attention = attention(Object.keys(outputs).filter((name) => name.startsWith("attention_")).map((name) => outputs[name]), height, width);
  return answer;
};

/** Return where the model looks, as maps of its patches in rows: of all blocks (rollout), and of each head of each. */
function attention(scores, height, width) {
  const tokens = scores[0]?.dims[3], grid = tokens && patches(tokens - about.prefix, about.size ?? [height, width]);
  if (!grid || scores.some(({ dims }) => dims[2] !== tokens || dims[3] !== tokens)) return null;
  const { prefix, readout } = about, together = readout.length === prefix + 1; // one share of all patches
  const share = (n) => (together && n >= prefix ? readout[prefix] / (tokens - prefix) : readout[n]);
  const start = Float64Array.from({ length: tokens }, (_, n) => share(n)); // the share of each token in the output
  const heads = ({ dims, data }) => Array.from({ length: dims[1] }, (_, h) => data.subarray(h * tokens ** 2, (h + 1) * tokens ** 2));
  let rollout = start;
  for (const layer of [...scores].reverse()) {
    const rows = heads(layer).map((head) => times(rollout, head));
    rollout = rollout.map((own, n) => 0.5 * own + 0.5 * rows.reduce((sum, row) => sum + row[n], 0) / rows.length);
  }
  const map = (row) => Array.from(row.subarray(about.prefix));
  const layers = scores.map((layer) => heads(layer).map((head) => map(times(start, head))));
  return { grid, box: box(grid, height, width), rollout: map(rollout), layers };
}

/** Return a row times a square matrix. */
function times(row, matrix) {
  const product = new Float64Array(row.length);
  row.forEach((share, q) => {
    if (share) for (let k = 0; k < row.length; k++) product[k] += share * matrix[q * row.length + k];
  });
  return product;
}

/** Return the patches down and across of an image of a size. */
function patches(count, [height, width]) {
  const [tall, wide] = [height / about.stride[0], width / about.stride[1]];
  for (const rounded of [Math.floor, Math.ceil]) { // up in a hybrid, whose ResNet pads
    if (rounded(tall) * rounded(wide) === count) return [rounded(tall), rounded(wide)];
  }
  return null;
}

/** Return the size to which an image is resized, and the window of it that is kept, as `Preprocessing.geometry` does. */
function geometry({ size, crop, crop_mode }, [height, width]) {
  const [down, across] = size, half = (rest) => Math.floor(rest / 2) + (rest % 2) * (Math.floor(rest / 2) % 2);
  if (crop === null) return { h: down, w: across, top: 0, left: 0 };
  let [h, w] = size.map((side) => Math.floor(side / crop));
  if (crop_mode === "center") {
    const other = h === w ? [(h * height) / width, (w * width) / height] : [(2 * w * height + width) / (2 * width), (2 * h * width + height) / (2 * height)];
    [h, w] = [Math.max(h, Math.floor(other[0])), Math.max(w, Math.floor(other[1]))];
  }
  return { h, w, top: half(h - down), left: half(w - across) };
}

/** Return the part of an image that the patches cover: top, left, height and width as shares. */
function box(grid, height, width) {
  const size = about.size ?? [height, width]; // what is left below and to the right of whole patches is cut off
  const [down, across] = size.map((side, axis) => Math.min(side, grid[axis] * about.stride[axis]));
  if (!about.size) return [0, 0, down / height, across / width];
  const { h, w, top, left } = geometry(about, about.resized ?? [height, width]);
  return [top / h, left / w, down / h, across / w];
}

// --- resizing: the file can do it too, but takes seconds for a photograph ---

const triangle = (x) => Math.max(1 - x, 0);
const KERNELS = {
  bilinear: [1, triangle],
  bilinear_antialias: [1, triangle],
  bicubic_antialias: [2, (x) => (x < 1 ? 1 + x * x * (1.5 * x - 2.5) : -0.5 * (x - 1) * (Math.min(x, 2) - 2) ** 2)],
  lanczos: [3, (x) => (x < 1e-9 ? 1 : x < 3 ? (3 * Math.sin(Math.PI * x) * Math.sin((Math.PI * x) / 3)) / (Math.PI * x) ** 2 : 0)],
};

/** Resize images as Pillow does: across, rounded to whole gray levels, then down. `bilinear` is rounded at the end alone. */
function resized(pixels, [batch, height, width]) {
  if (!(about.first?.interpolation in KERNELS)) return [pixels, [batch, height, width, 3]];
  const { h, w } = geometry(about.first, [height, width]), Between = about.first.interpolation === "bilinear" ? Float32Array : Uint8ClampedArray;
  const across = along(pixels, batch * height, width, 3, w, Between);
  return [new Uint8Array(along(across, batch, height, 3 * w, h, Uint8ClampedArray).buffer), [batch, h, w, 3]];
}

/** Resample the middle axis of an array (outer, source, inner) to `target` cells. */
function along(array, outer, source, inner, target, Type) {
  if (source === target) return Type === array.constructor ? array : Type.from(array);
  const result = new Type(outer * target * inner), cells = taps(source, target);
  const halvesUp = about.first.interpolation !== "bilinear"; // Pillow; NumPy, and JavaScript by itself, to even numbers
  for (let o = 0, to = 0; o < outer; o++) {
    for (const { first, weights } of cells) {
      for (let c = 0; c < inner; c++) {
        let sum = 0;
        for (let t = 0, at = (o * source + first) * inner + c; t < weights.length; t++, at += inner) sum += weights[t] * array[at];
        result[to++] = halvesUp ? Math.floor(sum + 0.5) : sum;
      }
    }
  }
  return result;
}

/** Return the old cells that each new cell is made of: the first, and the weights, as `resampling_matrix` does. */
function taps(source, target) {
  const [radius, kernel] = KERNELS[about.first.interpolation], antialias = about.first.interpolation !== "bilinear";
  const scale = antialias ? Math.max(1, source / target) : 1;
  return Array.from({ length: target }, (_, i) => {
    let center = ((i + 0.5) * source) / target - 0.5;
    if (!antialias) center = Math.min(Math.max(center, 0), source - 1); // cells at the border are repeated
    const first = Math.max(0, Math.ceil(center - radius * scale)), end = Math.min(source - 1, Math.floor(center + radius * scale));
    const weights = Array.from({ length: end - first + 1 }, (_, n) => kernel(Math.abs(first + n - center) / scale));
    const sum = weights.reduce((a, b) => a + b);
    return { first, weights: weights.map((weight) => weight / sum) };
  });
}

say(LOADING);
const opened = open();
window.opened = opened.then(() => `onnxruntime-web ${window.onnxruntime.env.versions.web}`);
window.opened.catch((error) => say(error.message, true));
