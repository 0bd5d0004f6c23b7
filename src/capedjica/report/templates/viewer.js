// Brain viewer: three slices through the template and one map, moved by clicks, sliders and keys.
(() => {
  const root = document.getElementById("viewer");
  if (!root) return;
  const data = JSON.parse(document.getElementById("volumes").textContent);
  const find = (name) => root.querySelector(`[data-role="${name}"]`);
  const canvases = [...root.querySelectorAll("canvas")];
  const sliders = ["x", "y", "z"].map(find);
  const cuts = [[1, 2], [0, 2], [0, 1]]; // horizontal and vertical axis of each slice, by the axis it is normal to
  const unpacked = new Map();
  let brain, map, opacity, wanted;

  async function unpack(text, signed) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = await new Response(stream).arrayBuffer();
    return signed ? new Int8Array(bytes) : new Uint8Array(bytes);
  }

  const place = () => sliders.map((slider) => Number(slider.value));
  const voxel = (mm, axis, step, shape) =>
    Math.max(0, Math.min(shape[axis] - 1, Math.round((mm - data.box[axis][0]) / step)));
  const at = (volume, shape, i) => volume[i[0] + shape[0] * (i[1] + shape[1] * i[2])];

  // One slice as a picture with one pixel per voxel; paint(value) returns red, green, blue, alpha.
  function cut(volume, shape, step, axis, mm, paint) {
    const [across, up] = cuts[axis], index = [0, 0, 0];
    const picture = new ImageData(shape[across], shape[up]);
    index[axis] = voxel(mm, axis, step, shape);
    for (let row = 0; row < shape[up]; row++) {
      index[up] = shape[up] - 1 - row;
      for (let column = 0; column < shape[across]; column++) {
        index[across] = column;
        picture.data.set(paint(at(volume, shape, index)), 4 * (row * shape[across] + column));
      }
    }
    const canvas = document.createElement("canvas");
    canvas.width = shape[across];
    canvas.height = shape[up];
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return canvas;
  }

  function draw() {
    const here = place(), lowest = Number(find("threshold").value);
    canvases.forEach((canvas, axis) => {
      const context = canvas.getContext("2d"), [across, up] = cuts[axis];
      const [darkest, brightest] = data.greys;
      const grey = (value) => [...Array(3).fill(darkest + (brightest - darkest) * value / 255), Math.min(255, 10 * value)];
      const tint = (level) =>
        Math.abs(level) < lowest * data.levels ? [0, 0, 0, 0] : [...data.colours[level + data.levels], 255 * opacity];
      context.clearRect(0, 0, canvas.width, canvas.height);
      const pictures = [[cut(brain, data.brain.shape, data.brain.step, axis, here[axis], grey), data.brain.step],
                        [cut(map, data.shape, data.step, axis, here[axis], tint), data.step]];
      for (const [picture, step] of pictures) {
        // A voxel extends half a step to each side of its centre.
        const width = data.box[across][1] - data.box[across][0], height = data.box[up][1] - data.box[up][0];
        const scale = canvas.width / width;
        const top = height - (picture.height - 0.5) * step;
        context.drawImage(picture, -0.5 * step * scale, top * scale, picture.width * step * scale, picture.height * step * scale);
      }
      cross(context, canvas, here, across, up);
      if (across === 0) sides(context, canvas);
    });
    tell(here);
  }

  function cross(context, canvas, here, across, up) {
    const scale = canvas.width / (data.box[across][1] - data.box[across][0]);
    const column = (here[across] - data.box[across][0]) * scale, row = (data.box[up][1] - here[up]) * scale;
    context.strokeStyle = "rgba(0, 158, 115, 0.9)";
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(column, 0);
    context.lineTo(column, canvas.height);
    context.moveTo(0, row);
    context.lineTo(canvas.width, row);
    context.stroke();
  }

  // Neurological convention: left is left.
  function sides(context, canvas) {
    context.fillStyle = "#ffffff";
    context.font = "bold 26px sans-serif";
    context.textBaseline = "top";
    [["L", "left", 8], ["R", "right", canvas.width - 8]].forEach(([letter, align, column]) => {
      context.textAlign = align;
      context.fillText(letter, column, 8);
    });
  }

  function tell(here) {
    const index = here.map((mm, axis) => voxel(mm, axis, data.step, data.shape));
    const value = at(map, data.shape, index) / data.levels;
    const words = value === 0 ? `below ${data.least}` : value.toFixed(2);
    find("place").textContent = `x = ${here[0]}, y = ${here[1]}, z = ${here[2]} mm (MNI): value ${words}`;
    sliders.forEach((slider, axis) => slider.setAttribute("aria-valuetext", `${here[axis]} millimetres`));
  }

  async function choose(number, move) {
    wanted = number;
    if (!unpacked.has(number)) unpacked.set(number, await unpack(data.maps[number].data, true));
    if (wanted !== number) return; // another map was chosen in the meantime
    map = unpacked.get(number);
    opacity = data.maps[number].opacity;
    if (move) data.maps[number].start.forEach((mm, axis) => (sliders[axis].value = mm));
    draw();
  }

  canvases.forEach((canvas, axis) => {
    const go = (event) => {
      const [across, up] = cuts[axis], box = canvas.getBoundingClientRect();
      const part = [(event.clientX - box.left) / box.width, 1 - (event.clientY - box.top) / box.height];
      [across, up].forEach((side, i) => {
        const [low, high] = data.box[side];
        sliders[side].value = Math.round(low + part[i] * (high - low));
      });
      draw();
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    canvas.addEventListener("pointermove", (event) => event.buttons && go(event));
  });
  sliders.forEach((slider) => slider.addEventListener("input", draw));
  find("threshold").addEventListener("input", (event) => {
    find("lowest").textContent = Number(event.target.value).toFixed(2);
    draw();
  });
  find("component").addEventListener("change", (event) => choose(Number(event.target.value), true));
  document.querySelectorAll("[data-look]").forEach((link) =>
    link.addEventListener("click", () => {
      const [number, ...mm] = link.dataset.look.split(" ").map(Number);
      find("component").value = number;
      mm.forEach((value, axis) => (sliders[axis].value = value));
      choose(number, mm.length === 0);
      root.scrollIntoView();
    }));

  (async () => {
    brain = await unpack(data.brain.data, false);
    await choose(0, true);
    root.dataset.ready = "yes";
  })();
})();
