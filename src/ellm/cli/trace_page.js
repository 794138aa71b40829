"use strict";
// Draws the map and lets tokens be chosen. Texts are only ever set as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("map");
  const tip = document.getElementById("tip");
  const panel = document.getElementById("document");
  const nodes = [...panel.children];
  const choices = [...document.querySelectorAll(".whole, .piece")];
  const profile = document.querySelector("#profile path");
  const [firstFar, afterFar] = data.competing;
  const CODE_READ = 0x80,
    CODE_SHARE = 0x7f,
    NEVER_BLANK = 0.14;
  let maps,
    row = -1,
    layer = 0,
    block = 0; // row -1 is the whole answer; layer, block: map cursor

  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // What is shown of a layer and block: root of the share, part of the rows that read it, and part
  // of the share that is from rows that did not.
  function cell(l, b) {
    if (row < 0) {
      const at = l * data.blocks + b;
      return [maps.share[at] / 255, maps.read[at] / 255, maps.skipped[at] / 255];
    }
    const columns = Math.ceil(data.blocks / data.width);
    const code = maps.tokens[(row * data.layers + l) * columns + Math.floor(b / data.width)];
    const read = (code & CODE_READ) / CODE_READ;
    return [(code & CODE_SHARE) / CODE_SHARE, read, 1 - read];
  }

  const seenBlocks = () => (row < 0 ? data.blocks : data.seen[row]);

  function blockShares() {
    if (row < 0) return [data.share, data.read];
    const shares = new Array(data.blocks).fill(0),
      reads = new Array(data.blocks).fill(0);
    for (let b = 0; b < seenBlocks(); b++) {
      for (let l = 0; l < data.layers; l++) {
        const [root, read] = cell(l, b);
        shares[b] += (root * root) / data.layers;
        reads[b] += read / data.layers;
      }
    }
    return [shares, reads];
  }

  function largestRoot() {
    let largest = 0;
    const [from, to] = firstFar < afterFar ? [firstFar, afterFar] : [0, data.blocks];
    for (let l = 0; l < data.layers; l++) {
      for (let b = from; b < to; b++) largest = Math.max(largest, cell(l, b)[0]);
    }
    return largest || 1;
  }

  const colour = (name) =>
    getComputedStyle(document.documentElement)
      .getPropertyValue(name)
      .trim()
      .split(/\s+/)
      .map(Number);

  // Columns are device pixels, each with the largest share under it: scaling the picture down
  // would average a single block of a long document away.
  function draw() {
    const ratio = window.devicePixelRatio || 1;
    const high = Math.max(7, Math.min(18, Math.floor(360 / data.layers)));
    canvas.style.height = `${high * data.layers}px`;
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    const tall = Math.max(2, Math.round(high * ratio));
    canvas.width = width;
    canvas.height = tall * data.layers;
    const [paper, line, blue, amber] = ["--paper", "--line", "--read", "--skipped"].map(colour);
    const image = new ImageData(width, canvas.height);
    const largest = largestRoot();
    const later = (seenBlocks() / data.blocks) * width;
    for (let l = 0; l < data.layers; l++) {
      for (let x = 0; x < width; x++) {
        const from = Math.floor((x * data.blocks) / width);
        const to = Math.max(from + 1, Math.floor(((x + 1) * data.blocks) / width));
        let shown = [-1, 0, 0];
        for (let b = from; b < to; b++) {
          const its = cell(l, b);
          if (its[0] > shown[0] || (its[0] === shown[0] && its[1] > shown[1])) shown = its;
        }
        const [root, read, skipped] = shown;
        const strength = Math.min(1, root / largest),
          tint = NEVER_BLANK * read;
        const isRead = tint + (1 - tint) * strength * (1 - skipped);
        const isSkipped = (1 - isRead) * strength * skipped;
        for (let y = 0; y < tall; y++) {
          const at = 4 * ((l * tall + y) * width + x);
          const hatched = x >= later && (x + l * tall + y) % Math.round(5 * ratio) < ratio;
          const gap = y === tall - 1;
          for (let c = 0; c < 3; c++) {
            const mixed =
              paper[c] + isRead * (blue[c] - paper[c]) + isSkipped * (amber[c] - paper[c]);
            image.data[at + c] = hatched ? line[c] : gap || x >= later ? paper[c] : mixed;
          }
          image.data[at + 3] = 255;
        }
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    for (const node of document.querySelectorAll(".scale"))
      node.textContent = percent(largest ** 2);
  }

  function percent(share) {
    const value = 100 * share;
    if (value > 0 && value < 0.01) return "<0.01%";
    return `${value === 0 ? 0 : value.toFixed(value < 1 ? 2 : value < 10 ? 1 : 0)}%`;
  }

  const count = (number) => number.toLocaleString("en-US");

  function place(b) {
    const first = b * data.blockTokens;
    return `tokens ${count(first)} to ${count(first + data.blockTokens - 1)}`;
  }

  const piece = (r) => `answer token ${r + 1} “${choices[r + 1].textContent.trim()}”`;

  function show() {
    const [shares, reads] = blockShares();
    const largest = Math.max(...shares.slice(firstFar, afterFar), 0) || Math.max(...shares) || 1;
    const shade = shares.map((share) => Math.min(1, share / largest));
    nodes.forEach((node, b) => {
      node.style.setProperty("--m", shade[b].toFixed(2));
      node.classList.toggle("unread", reads[b] === 0);
      node.querySelector("b").textContent = b < seenBlocks() ? percent(shares[b]) : "later";
    });
    const steps = shade.map((height, b) => `L${b} ${(100 - 100 * height).toFixed(0)}H${b + 1}`);
    profile.setAttribute("d", `M0 100${steps.join("")}V100Z`);
    choices.forEach((node, at) => {
      node.setAttribute("aria-checked", at === row + 1);
      node.tabIndex = at === row + 1 ? 0 : -1;
    });
    tell(shares);
    draw();
  }

  function tell(shares) {
    const shown = document.getElementById("shown");
    if (row < 0) {
      shown.textContent = "The whole answer.";
      return;
    }
    const [read, skipped, far] = [data.rowRead, data.rowSkipped, data.rowFar].map((of) =>
      percent(of[row]),
    );
    shown.textContent =
      `${piece(row).replace("a", "A")}: read ${read} of the blocks, skipped at most ${skipped} of its ` +
      `attention and gave at most ${far} to the document. Most attended there: `;
    const order = shares.map((_, b) => b).slice(firstFar, afterFar);
    const top = order
      .sort((a, b) => shares[b] - shares[a])
      .slice(0, 3)
      .filter((b) => shares[b] > 0);
    top.forEach((b, at) => {
      const link = document.createElement("a");
      link.href = `#b${b}`;
      link.textContent = place(b);
      shown.append(link, ` (${percent(shares[b])})${at < top.length - 1 ? ", " : "."}`);
    });
    if (!top.length) shown.append("none.");
  }

  function goTo(b) {
    for (const node of panel.querySelectorAll(".marked")) node.classList.remove("marked");
    nodes[b].classList.add("marked");
    nodes[b].scrollIntoView({ block: "nearest" });
    if (panel.scrollHeight > panel.clientHeight + 1) {
      const box = nodes[b].getBoundingClientRect(),
        frame = panel.getBoundingClientRect();
      panel.scrollTop += box.top - frame.top - Math.max(0, frame.height - box.height) / 2;
    }
    nodes[b].focus({ preventScroll: true });
  }

  function tellCell(l, b) {
    if (b >= seenBlocks()) return "It came after this token.";
    const [root, read] = cell(l, b);
    const what =
      row < 0
        ? `read for ${percent(read)} of the tokens`
        : read
          ? "read"
          : "not read, only its mean";
    const wide = row >= 0 && data.width > 1 ? ` (${data.width} blocks)` : "";
    return `Layer ${l}: share ${percent(root * root)}, ${what}${wide}`;
  }

  function showTip(b, lines, x, y, withText) {
    const first = b * data.blockTokens;
    const [into, share, read, most] = [
      first / data.promptTokens,
      data.share[b],
      data.read[b],
      data.peak[b],
    ].map(percent);
    const texts = [
      `Block ${count(b)}, ${place(b)}, ${into} into the prompt`,
      ...lines,
      `Whole answer: share ${share}, read in ${read} of tokens and layers`,
    ];
    if (data.peak[b] > 0) {
      texts.push(`Most ${most}, in layer ${data.peakLayer[b]} for ${piece(data.peakRow[b])}`);
    }
    tip.replaceChildren(
      ...texts.map((text) => {
        const line = document.createElement("p");
        line.textContent = text;
        return line;
      }),
    );
    if (withText) {
      const quote = document.createElement("p");
      quote.className = "quote";
      quote.textContent = nodes[b].querySelector(".text").textContent.trim().slice(0, 400);
      tip.append(quote);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
  }

  const hideTip = () => {
    tip.hidden = true;
  };

  function choose(next) {
    row = next;
    show();
    choices[row + 1].focus();
  }

  function listenToAnswer() {
    const group = document.getElementById("answer");
    group.setAttribute("role", "radiogroup");
    for (const node of choices) node.setAttribute("role", "radio");
    group.addEventListener("click", (event) => {
      const at = choices.indexOf(event.target.closest("[role=radio]"));
      if (at >= 0) choose(at - 1);
    });
    group.addEventListener("keydown", (event) => {
      const last = choices.length - 2;
      const next = {
        ArrowRight: row + 1,
        ArrowDown: row + 1,
        ArrowLeft: row - 1,
        ArrowUp: row - 1,
        Home: -1,
        Escape: -1,
        End: last,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      choose(Math.max(-1, Math.min(last, next)));
    });
  }

  function listenToMap() {
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const inside = (part, size) => Math.max(0, Math.min(size - 1, Math.floor(part * size)));
      block = inside((event.clientX - box.left) / box.width, data.blocks);
      layer = inside((event.clientY - box.top) / box.height, data.layers);
      showTip(block, [tellCell(layer, block)], event.clientX, event.clientY, true);
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("blur", hideTip);
    canvas.addEventListener("click", () => goTo(block));
    canvas.addEventListener("keydown", (event) => {
      const page = Math.max(1, Math.round(data.blocks / 20));
      const [down, right] =
        {
          ArrowLeft: [0, -1],
          ArrowRight: [0, 1],
          ArrowUp: [-1, 0],
          ArrowDown: [1, 0],
          PageUp: [0, -page],
          PageDown: [0, page],
          Home: [0, -data.blocks],
          End: [0, data.blocks],
          Enter: [0, 0],
        }[event.key] || [];
      if (down === undefined) return;
      event.preventDefault();
      if (event.key === "Enter") return goTo(block);
      layer = Math.max(0, Math.min(data.layers - 1, layer + down));
      block = Math.max(0, Math.min(data.blocks - 1, block + right));
      const box = canvas.getBoundingClientRect();
      const x = box.left + ((block + 0.5) / data.blocks) * box.width;
      const y = box.top + ((layer + 0.5) / data.layers) * box.height;
      showTip(block, [tellCell(layer, block)], x, y, true);
    });
  }

  function listenToDocument() {
    panel.addEventListener("pointermove", (event) => {
      const b = nodes.indexOf(event.target.closest(".block"));
      if (b >= 0) showTip(b, [], event.clientX, event.clientY, false);
    });
    for (const type of ["pointerleave", "focusout", "scroll"])
      panel.addEventListener(type, hideTip);
    panel.addEventListener("keydown", (event) => {
      const b = nodes.indexOf(event.target);
      const next = b + { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (b < 0 || !nodes[next]) return;
      event.preventDefault();
      goTo(next);
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#b']");
      if (!link) return;
      event.preventDefault();
      goTo(Number(link.hash.slice(2)));
    });
  }

  async function start() {
    const packed = [data.mapShare, data.mapRead, data.mapSkipped, data.tokenMaps];
    const [share, read, skipped, tokens] = await Promise.all(packed.map(unpack));
    maps = { share, read, skipped, tokens };
    document.body.classList.add("scripts");
    canvas.hidden = false;
    for (const node of document.querySelectorAll(".scripted")) node.hidden = false;
    listenToAnswer();
    listenToMap();
    listenToDocument();
    show();
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  start().catch((error) => {
    document.getElementById("shown").textContent = `The map cannot be drawn: ${error.message}`;
  });
})();
