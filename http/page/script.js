// SPDX-License-Identifier: Apache-2.0
// The page of a broker: what /api/v1 answers, as people look at it.
//
//   the stream of events --> which answers may have changed --> asked again, if the view has them --> drawn
//
// A view is a function from answers to elements.  While it is drawn it names the answers that it needs (feed),
// and patch() changes the document where it differs from what was drawn before.  A list has elements for the
// rows in sight alone, whatever its length.
'use strict';

/* ---- elements ---- */

const h = (tag, attrs, ...kids) =>
  ({tag, attrs: attrs || {}, kids: kids.flat(9).filter(kid => kid != null && kid !== false).map(kid => kid.tag ? kid : String(kid))});

function set(el, name, value) {
  if (name === 'key') return;
  if (value == null || value === false) el.removeAttribute(name);
  else if (name === 'style') for (const [property, text] of Object.entries(value)) el.style.setProperty(property, text);
  else el.setAttribute(name, value === true ? '' : value);
}

const same = (a, b) => a === b || (typeof a === 'object' && JSON.stringify(a) === JSON.stringify(b));

function make(kid) {
  if (typeof kid === 'string') return document.createTextNode(kid);
  const el = document.createElement(kid.tag);
  el.key = kid.attrs.key;
  patch(el, kid);
  return el;
}

function patch(el, next) {
  const had = el.had || {};
  for (const name in had) if (!(name in next.attrs)) set(el, name, null);
  for (const name in next.attrs) if (!same(had[name], next.attrs[name])) set(el, name, next.attrs[name]);
  el.had = next.attrs;
  patch_kids(el, next.kids);
}

const fits = (node, kid) =>
  typeof kid === 'string' ? node.nodeType === Node.TEXT_NODE
                          : node.nodeName === kid.tag.toUpperCase() && node.key === kid.attrs.key;

function patch_kids(el, kids) {
  const keyed = new Map();
  for (const node of el.childNodes) if (node.key != null) keyed.set(node.key, node);
  let at = el.firstChild;
  for (const kid of kids) {
    const found = kid.tag && kid.attrs.key != null ? keyed.get(kid.attrs.key) : at;
    let node = found && fits(found, kid) ? found : null;
    if (!node) node = make(kid);
    else if (kid.tag) patch(node, kid);
    else if (node.data !== kid) node.data = kid;
    if (node === at) at = at.nextSibling;
    else el.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/* ---- words and numbers ---- */

const count_of = (n, noun) => `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
const cut = n => n >= 100 ? Math.round(n).toString() : n.toFixed(1).replace(/\.0$/, '');

function bytes_text(n) {
  if (n == null) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  while (n >= 1000 && i < 4) n /= 1000, i++;
  return `${cut(n)} ${units[i]}`;
}

function ms_text(ms) {
  if (ms == null) return '–';
  if (ms < 1000) return `${cut(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${cut(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

let skew_ms = 0;        // the broker's clock, less this one
const age_ms = at => Math.max(0, Date.now() + skew_ms - Date.parse(at));
/* A text with `commands` in it. */
const with_code = text => text.split('`').map((part, i) => i % 2 ? h('code', {}, part) : part);
const ago = at => at ? (age_ms(at) < 1000 ? 'now' : `${ms_text(Math.floor(age_ms(at) / 1000) * 1000)} ago`) : '–';
const clock = at => new Date(at).toLocaleTimeString('en-GB');
const ref = (name, version) => `#/versions/${encodeURIComponent(name)}@${version}`;

/* ---- asking ---- */

const ANSWER_MS = 10000;        // for an answer to come
const SILENCE_MS = 40000;       // of the stream: the broker gives a sign of life every 15 s
const RETRY_MS = 1000;
const FAILING_MS = 15000;       // without a good answer, and all others refused: the broker is not just busy
const PACE_MS = 400;            // between two requests of one answer; as the broker says, where many pages are
                                // open; and ten times as long as it took,
const PACE_MOST_MS = 10000;     // at most this long: a broker that stood still answers as fast as before
const META_SHOWN = 8;           // of a version
const EVENTS_KEPT = 2000;
const EVENTS_BEFORE = 500;      // that the page begins with

class Refused extends Error {
  constructor(status, error) {
    super(error?.message || `the broker answers with status ${status}`);
    this.status = status;
    this.error = error;
  }
}

let token = sessionStorage.getItem('heddle-token');

let pace_ms = PACE_MS;

async function send(path, headers, signal) {
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, {headers, signal, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  if (answer.ok) {
    pace_ms = Math.max(PACE_MS, Number(answer.headers.get('X-Pace-Ms')) || 0);
    return answer;
  }
  let body = null;
  try { body = await answer.json(); } catch { /* not one of the broker's */ }
  if (answer.status === 401) ask_token();
  throw new Refused(answer.status, body?.error);
}

const ask = async path => (await send(path, {}, AbortSignal.timeout(ANSWER_MS))).json();

function ask_token() {
  const box = document.getElementById('token');
  if (box.open) return;
  if (token) document.getElementById('token-why').textContent = 'The broker refused this token. Enter another one.';
  box.showModal();
}

/* One answer of the API: asked for when the view needs it and it may have changed, one request at a time. */
class Feed {
  data = null;
  error = null;
  is_stale = true;
  is_asked = false;
  used = 0;             // the drawing that needed it last
  next_ms = 0;
  came_ms = 0;
  period_ms = 0;

  constructor(path) { this.path = path; }

  mark() {
    this.is_stale = true;
    if (this.used === drawing) this.go();
  }

  async go() {
    if (this.is_asked || this.timer || !this.is_stale || !can_ask(this)) return;
    const wait_ms = this.next_ms - performance.now();
    if (wait_ms > 0) {
      this.timer = setTimeout(() => { this.timer = 0; if (this.used === drawing) this.go(); }, wait_ms);
      return;
    }
    const began_ms = performance.now(), path = this.path;
    this.is_asked = true;
    this.is_stale = false;
    try {
      this.data = await ask(path);
      this.error = null;
      this.came_ms = performance.now();
      if (this === feeds.get('status')) take_status(this.data);
      link.heard = Date.now();
      link.failing_ms = null;
      answers_again();
    } catch (error) {
      this.error = error;
      this.is_stale = !(error instanceof Refused) || error.status >= 500;
      if (!(error instanceof Refused)) lose('does not answer');
      else if (this.is_stale) note_refusal(error);
      else link.failing_ms = null;
    }
    this.is_asked = false;
    const now_ms = performance.now();
    this.next_ms = this.error ? now_ms + RETRY_MS
      : began_ms + Math.min(Math.max(pace_ms, 10 * (now_ms - began_ms)), PACE_MOST_MS);
    if (this.path !== path) this.is_stale = true;
    draw_soon();
  }
}

const feeds = new Map();
let drawing = 1;

/* The view that is being drawn needs this answer.  `period_ms`: how old it may be without any event. */
function feed(name, path, period_ms) {
  let f = feeds.get(name);
  if (!f) feeds.set(name, f = new Feed(path));
  if (f.path !== path) f.path = path, f.is_stale = true;
  f.used = drawing;
  f.period_ms = period_ms;
  if (performance.now() - f.came_ms > period_ms) f.is_stale = true;
  return f;
}

const status_feed = () => feed('status', '/api/v1/status', 5000);
const workers_feed = () => feed('workers', '/api/v1/workers', 5000);

let first_release = null;
let release = null;
let cluster = null;
let other = null;               // {at, was}: another cluster answers since then

/* The same address, and the registry of another one: its events have numbers of their own. */
function take_cluster(id) {
  if (cluster != null && cluster !== id) {
    other = {at: Date.now(), was: cluster, is_new: true};
    events = [];
    place = null;
    stop?.abort();
  }
  cluster = id;
}

function take_status(body) {
  skew_ms = Date.parse(body.broker.now_at) - Date.now();
  release = body.broker.heddle;
  if (first_release == null) first_release = release;
  take_cluster(body.broker.cluster);
}

/* ---- the broker: there, or lost ---- */

const link = {state: 'new', since: Date.now(), heard: 0, failing_ms: null, why: '', is_open: false, back: null, gap: null};

const can_ask = f => !document.hidden && !document.getElementById('token').open &&
                     (link.state !== 'lost' || (link.is_open && f.path === '/api/v1/status'));

/* Since its last answer: one that stands still is noticed late. */
function lose(why) {
  if (link.state !== 'lost') Object.assign(link, {state: 'lost', since: link.heard || Date.now(), back: null});
  link.why = why;
  draw_soon();
}

/* It answers that it cannot: it stands by, ends, or its loop stands still.  One that is busy can, in a moment. */
const is_busy = error => error instanceof Refused && error.error?.code === 'limit';
const is_unable = error => error instanceof Refused && (error.status === 503 || error.status === 504) && !is_busy(error);

/* No error of the question's.  A broker that is busy, or a proxy before it, may answer in a moment: where none of
 * the page's questions has a good answer for long, it does not matter what the others said. */
function note_refusal(error) {
  if (link.failing_ms === null) link.failing_ms = performance.now();
  const has_failed = performance.now() - link.failing_ms > FAILING_MS;
  if (is_unable(error) || has_failed) lose(`answers: ${error.error?.message || `status ${error.status}`}`);
}

function answers_again() {
  if (link.state === 'live' || !link.is_open) return;
  if (link.state === 'lost') link.back = {at: Date.now(), away_ms: Date.now() - link.since};
  link.state = 'live';
  link.since = Date.now();
  for (const f of feeds.values()) f.is_stale = true;
  draw_soon();
}

/* ---- the stream of events ---- */

let events = [];                // the newest last
let place = null;               // where the stream goes on: {epoch, after}
let stop = null;                // ends the stream that is open

const pause = ms => new Promise(done => setTimeout(done, ms));

async function shown() {
  while (document.hidden || document.getElementById('token').open) await pause(200);
}

function take_event(e) {
  place = {epoch: e.epoch, after: e.seq + 1};
  events.push(e);
  if (events.length > EVENTS_KEPT + 200) events = events.slice(-EVENTS_KEPT);
  if (e.type === 'gap') link.gap = {at: Date.now(), message: e.message};
  for (const [name, f] of feeds) {
    const of = name.split(' ')[1];
    if (!of || of === e.adapter || of.startsWith(`${e.adapter}@`) || e.type === 'gap') f.mark();
  }
}

/* Server-Sent Events by hand: EventSource cannot send a token. */
async function read_stream(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    alive();
    const parts = (text + value).split('\n\n');
    text = parts.pop();
    for (const part of parts) {
      const line = part.split('\n').find(l => l.startsWith('data: '));
      if (line) take_event(JSON.parse(line.slice(6)));
    }
    draw_soon();
  }
}

async function follow_once() {
  if (!place) {
    const page = await ask('/api/v1/events?limit=1');
    place = {epoch: page.epoch, after: Math.max(page.first_seq, page.last_seq - EVENTS_BEFORE + 1, 1)};
  }
  stop = new AbortController();
  let timer = 0;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  try {
    alive();
    const answer = await send(`/api/v1/events?after=${place.after}&epoch=${place.epoch}`, {Accept: 'text/event-stream'},
                              stop.signal);
    link.is_open = true;
    answers_again();
    await read_stream(answer.body, alive);
  } finally {
    clearTimeout(timer);
    link.is_open = false;
  }
}

async function follow() {
  for (;;) {
    await shown();
    try {
      await follow_once();
      if (!document.hidden) lose('ended the connection');
    } catch (error) {
      if (other?.is_new) {
        other.is_new = false;
        continue;
      }
      link.is_open = is_busy(error);        // without a stream the periods of answers do
      if (is_unable(error)) lose(`answers: ${error.message}`);
      else if (!(error instanceof Refused) && !document.hidden) lose('does not answer');
      await pause(link.is_open ? 5 * RETRY_MS : RETRY_MS);
    }
  }
}

/* ---- what a version is to its adapter ---- */

const STATES = {
  staging: ['…', 'staging'], staged: ['✓', 'staged'], active: ['▶', 'active'], kept: ['●', 'kept'],
  superseded: ['–', 'superseded'], failed: ['✕', 'failed'], retired: ['', 'retired'], lost: ['!', 'lost'],
  back: ['↩', 'rolled back'],
};

/* Rolled back: it was active, and an older one is now. */
function state_of(v, adapter) {
  const is_back = adapter?.active && v.version > adapter.active.version && v.activated_at &&
                  (v.state === 'kept' || v.state === 'retired');
  return is_back ? 'back' : v.state;
}

const pill = (state, text) => h('span', {class: `pill ${state}`}, text);
const state_pill = state => pill(state, `${STATES[state]?.[0] || ''} ${STATES[state]?.[1] || state}`.trim());
const is_moving = v => v.state === 'staging' || v.state === 'staged' || v.progress != null || v.unfinished != null;

/* -> Map: adapter -> Map: version, 0 for none -> how many workers serve it; once for each answer */
let served_of = null, served = new Map();
function serving_of(name) {
  const body = feeds.get('workers')?.data;
  if (body && served_of !== body) {
    served_of = body;
    served = new Map();
    for (const w of body.workers) {
      if (w.state !== 'ready' && w.state !== 'draining') continue;
      for (const s of w.adapters) {
        if (!served.has(s.name)) served.set(s.name, new Map());
        const of = served.get(s.name), version = s.version || 0;
        of.set(version, (of.get(version) || 0) + 1);
      }
    }
  }
  return served.get(name) || new Map();
}

function serving_bar(a) {
  const parts = [...serving_of(a.name)].sort((x, y) => (y[0] || -1) - (x[0] || -1)), active = a.active?.version || 0;
  if (!parts.length) return h('div', {class: 'serving'}, h('span', {class: 'none', key: 0}, 'no workers'));
  const words = parts.map(([v, n]) => `${count_of(n, 'worker')} ${n === 1 ? 'serves' : 'serve'} ${v ? `version ${v}` : 'nothing'}`);
  return h('div', {class: 'serving', role: 'img', 'aria-label': words.join(', ')}, parts.map(([v, n]) =>
    h('span', {key: v, title: `${v ? `v${v}` : 'nothing'}: ${count_of(n, 'worker')}`, style: {'flex-grow': String(n)},
               class: !v ? 'none' : v === active ? 'active' : v > active ? 'newer' : 'behind'},
      v ? `v${v} · ${n}` : `none · ${n}`)));
}

/* ---- lists and tables ---- */

const scrolls = new Map();      // by name: where a list stands

/* A list of which only the rows in sight are elements.  `row`: (item, attributes) -> element. */
function rows(name, items, key, row, attrs) {
  const at = scrolls.get(name) || {top: 0, height: innerHeight, row: 60};
  const first = Math.max(0, Math.min(Math.floor(at.top / at.row) - 2, items.length - 1));
  const last = Math.min(items.length, Math.ceil((at.top + at.height) / at.row) + 2);
  return h('div', {...attrs, class: 'rows', 'data-rows': name, tabindex: '0'},
    h('div', {class: 'space', style: {height: `${items.length * at.row}px`}},
      items.slice(first, last).map((item, i) =>
        row(item, {key: key(item), style: {transform: `translateY(${(first + i) * at.row}px)`}}, first + i))));
}

/* After each drawing: how high rows and lists are here, which the style says. */
function measure() {
  let has_changed = false;
  for (const el of document.querySelectorAll('[data-rows]')) {
    const name = el.getAttribute('data-rows');
    const now = {top: el.scrollTop, width: el.clientWidth, height: el.clientHeight, row: parseFloat(getComputedStyle(el).getPropertyValue('--row')) || 60};
    if (JSON.stringify(scrolls.get(name)) !== JSON.stringify(now)) has_changed = true;
    scrolls.set(name, now);
  }
  if (has_changed) draw_soon();
}

const choices = {};             // what the reader has chosen, by control: texts of filters, columns of order

/* `columns`: [{id, title, class, cell: item -> kids, by: item -> what it is sorted by}] */
function table(name, label, columns, items, key) {
  const order = choices[`${name} order`], by = columns.find(c => c.id === order?.id)?.by;
  if (by) {
    const sign = order.down ? -1 : 1;
    const compare = (x, y) => typeof x === 'string' ? x.localeCompare(y, 'en', {numeric: true}) : x - y;
    items = [...items].sort((x, y) => sign * compare(by(x), by(y)));
  }
  const head = c => {
    const is_by = order?.id === c.id, to = is_by ? (order.down ? 'descending' : 'ascending') : null;
    return h('div', {role: 'columnheader', class: c.class, 'aria-sort': to},
      c.by ? h('button', {type: 'button', 'data-order': `${name} ${c.id}`}, c.title, is_by ? (order.down ? ' ↓' : ' ↑') : '')
           : c.title);
  };
  return h('div', {class: `panel table ${name}`, role: 'table', 'aria-label': label, 'aria-rowcount': items.length + 1},
    h('div', {class: 'heads', role: 'rowgroup'}, h('div', {role: 'row', 'aria-rowindex': 1}, columns.map(head))),
    rows(name, items, key, (item, attrs, i) =>
      h('div', {...attrs, role: 'row', 'aria-rowindex': i + 2}, columns.map(c => {
        const kids = c.cell(item);
        return h('div', {role: 'cell', class: c.class, title: typeof kids === 'string' ? kids : null}, kids);
      })), {role: 'rowgroup', 'aria-label': label}));
}

const filter_box = (id, label) =>
  h('input', {type: 'search', key: `filter ${id}`, 'data-choice': id, 'aria-label': label, placeholder: `${label}  ( / )`});
const check_box = (id, label) =>
  h('label', {class: 'check', key: `check ${id}`}, h('input', {type: 'checkbox', 'data-choice': id}), label);

/* Every word has to be there. */
function matches(id, text) {
  const low = text.toLowerCase();
  return (choices[id] || '').toLowerCase().split(/\s+/).every(word => low.includes(word));
}

/* A text that may be cut in its cell, and what opens all of it; or all that belongs to it. */
const more = (about, text, whole = text) => text === '–' ? text :
  h('button', {type: 'button', class: 'more', 'aria-haspopup': 'dialog', 'data-more': whole, 'data-about': about}, text);

const heading = text => h('h1', {tabindex: '-1', key: text}, text);
const meter = (part, state) =>
  h('span', {class: `meter ${state}`}, h('i', {style: {width: `${Math.round(100 * Math.min(1, part || 0))}%`}}));

/* Until an answer is there, or where it was refused. */
function missing(f) {
  if (f.data && !(f.error instanceof Refused && f.error.status < 500)) return null;
  if (!f.error) return h('p', {class: 'empty'}, 'Asking the broker …');
  return h('p', {class: 'empty'}, f.error.message, f.error.error?.hint ? ` – ${f.error.error.hint}` : '');
}

/* ---- view: adapters ---- */

function tiles(body) {
  const workers = feeds.get('workers')?.data?.workers || [], count = body.count;
  const current = workers.filter(w => w.state === 'ready' && w.current).length;
  const lag = Math.max(0, ...body.adapters.map(a => a.max_lag));
  const tile = (title, value, more, state) =>
    h('div', {class: `tile ${state || ''}`, key: title}, h('dt', {}, title), h('dd', {}, value, h('small', {}, more ? ` ${more}` : '')));
  return h('dl', {class: 'tiles'},
    tile('Adapters', count.adapters.toLocaleString('en'), count_of(count.versions, 'version')),
    tile('Workers ready', count.workers_ready.toLocaleString('en'), `${current.toLocaleString('en')} current`),
    tile('Workers lost', count.workers_lost.toLocaleString('en'), '', count.workers_lost ? 'bad' : ''),
    tile('Greatest lag', lag.toLocaleString('en'), lag === 1 ? 'version' : 'versions', lag ? 'warn' : ''),
    tile('Publishers', count.writers.toLocaleString('en'), 'connected'));
}

const resume = name => with_code(` (\`heddle resume ${name}\` ends that)`);

function needs(body) {
  const also = body.warnings.filter(w => !body.reasons.some(r => r.name === w.name));
  const part = (title, list) => list.length
    ? [h('h2', {key: title}, title), list.map(r => h('div', {}, pill('warn', r.name), ' ', r.message,
                                                                r.name === 'adapter.held' && resume(r.adapter)))] : [];
  if (!body.reasons.length && !also.length) return null;
  return h('section', {class: 'panel needs', 'aria-label': body.reasons.length ? 'What needs an operator' : 'Also noted',
                       tabindex: '0', key: 'needs'},
    part('What needs an operator', body.reasons), part('Also noted', also));
}

/* Distances rise with the logarithm of the time between two versions, so that both a burst and a night fit. */
function timeline(a) {
  const newest = a.newest?.version || 0;
  if (!newest) return h('p', {class: 'legend'}, 'nothing was published yet');
  const room = (scrolls.get('adapters')?.width || innerWidth) - (innerWidth >= 1280 ? 460 : 60);
  const most = Math.max(3, Math.min(20, Math.floor(room / (innerWidth >= 2600 ? 90 : 64))));
  const f = feed(`line ${a.name}`, `/api/v1/versions/${encodeURIComponent(a.name)}?after=${Math.max(0, newest - 20)}`,
                 a.newest.state === 'staging' || a.newest.state === 'staged' ? 1000 : 15000);
  const versions = (f.data?.versions || []).slice(-most);
  return h('ol', {class: 'time', 'aria-label': `Versions of ${a.name}, the oldest first`}, versions.map((v, i) => {
    const state = state_of(v, a);
    const gap_ms = i ? Math.max(0, Date.parse(v.created_at) - Date.parse(versions[i - 1].created_at)) : 0;
    const words = `version ${v.version}, ${STATES[state]?.[1] || state}, published ${ago(v.created_at)}`;
    return h('li', {key: v.version, style: {'flex-grow': String(i ? 1 + Math.log10(1 + gap_ms / 1000) : 0.2)}},
      h('a', {href: ref(a.name, v.version), 'aria-label': words, title: v.reason?.message || words},
        h('span', {class: `dot ${state}`, 'aria-hidden': 'true'}, state === 'staging' ? '' : STATES[state]?.[0] || ''),
        h('b', {}, v.version), h('small', {}, ago(v.created_at).replace(' ago', ''))));
  }));
}

function badges(a) {
  const is_lost = a.active?.state === 'lost';
  return [
    a.active ? pill(is_lost ? 'lost' : 'active', `${is_lost ? '! lost' : '▶'} v${a.active.version}`) : pill('', 'nothing active'),
    a.active && h('span', {class: 'soft narrow'}, `since ${ago(a.active.since_at).replace(' ago', '')}`),
    a.held && pill('back', `↩ held at v${a.held.version} by ${a.held.by}`),
    a.newest && (a.newest.state === 'staging' || a.newest.state === 'staged') && pill('moving', `v${a.newest.version} ${a.newest.state}`),
    a.newest?.state === 'failed' && pill('failed', `✕ v${a.newest.version} failed`),
  ];
}

const current_text = a => `${a.current_count} of ${a.subscriber_count} current`;
const lag_pill = a => a.max_lag ? pill('warn', `lag ${a.max_lag}`) : a.subscriber_count ? pill('active', 'no lag') : null;

function adapter_card(a, attrs) {
  const link_to = `#/adapters/${encodeURIComponent(a.name)}`;
  return h('article', {...attrs, class: 'card', 'data-adapter': a.name, 'aria-label': a.name},
    h('div', {class: 'top'}, h('h2', {}, h('a', {href: link_to}, a.name)), badges(a),
      h('span', {class: 'soft end'}, current_text(a)), lag_pill(a),
      h('span', {class: 'soft wide'}, a.writer ? `publisher ${a.writer.name} on ${a.writer.host}` : 'no publisher')),
    serving_bar(a), timeline(a));
}

function recent() {
  return h('section', {class: 'panel aside', 'aria-label': 'Recent events', key: 'recent'}, h('h2', {}, 'Recent events'),
    h('ol', {tabindex: '0', 'aria-label': 'Recent events, the newest first'}, events.slice(-60).reverse().map(e =>
      h('li', {key: `${e.epoch}-${e.seq}`}, h('span', {class: 'when mono'}, clock(e.at)), event_pill(e), ' ',
        e.adapter && e.version ? h('a', {href: ref(e.adapter, e.version)}, `${e.adapter}@${e.version}`) : e.adapter || '', ' ', e.worker || '',
        e.message ? h('div', {}, e.message) : ''))));
}

function view_adapters() {
  const f = status_feed();
  workers_feed();
  const none = missing(f);
  if (none) return [h('h1', {class: 'sr', tabindex: '-1'}, 'Adapters'), none];
  const found = f.data.adapters.filter(a => matches('adapters', `${a.name} ${a.base_model || ''}`));
  return [h('h1', {class: 'sr', tabindex: '-1', key: 'Adapters'}, 'Adapters'),
    tiles(f.data), needs(f.data),
    h('div', {class: 'two', key: 'two'},
      h('div', {}, h('div', {class: 'head'}, filter_box('adapters', 'Filter adapters'),
          h('div', {class: 'legend'},
            [['green', 'active version'], ['blue', 'newer'], ['amber', 'behind'], ['grey', 'nothing']].map(([color, text]) =>
              h('span', {}, h('i', {style: {background: `var(--${color === 'grey' ? 'grey-soft' : color})`}}), text)))),
        found.length ? rows('adapters', found, a => a.name, adapter_card, {'aria-label': 'Adapters', role: 'region'})
                     : h('p', {class: 'empty', key: 'none'}, f.data.adapters.length ? 'No adapter matches the filter.'
                         : 'Nothing was published yet, and no worker is there. Publish with: heddle publish DIR --adapter NAME')),
      recent())];
}

/* ---- view: one adapter ---- */

function view_adapter(name) {
  const f = status_feed(), of = feed(`all ${name}`, `/api/v1/versions/${encodeURIComponent(name)}`, 15000);
  workers_feed();
  const none = missing(f) || missing(of);
  const a = f.data?.adapters.find(one => one.name === name) || {name, max_lag: 0, subscriber_count: 0, current_count: 0};
  if (none) return [heading(name), none];
  const columns = [
    {id: 'version', title: 'Version', by: v => v.version, cell: v => h('a', {href: ref(name, v.version)}, `v${v.version}`)},
    {id: 'state', title: 'State', by: v => v.state, cell: v => state_pill(state_of(v, a))},
    {id: 'step', title: 'Step', class: 'num wide', by: v => v.step ?? -1, cell: v => String(v.step ?? '–')},
    {id: 'published', title: 'Published', class: 'num narrow', by: v => Date.parse(v.created_at), cell: v => ago(v.created_at)},
    {id: 'took', title: 'To active', class: 'num narrow', by: v => v.took_ms ?? -1, cell: v => ms_text(v.took_ms)},
    {id: 'size', title: 'Size', class: 'num wide', by: v => v.data_bytes, cell: v => bytes_text(v.data_bytes)},
    {id: 'holders', title: 'Holders', class: 'num wide', by: v => v.holder_count, cell: v => String(v.holder_count)},
    {id: 'serving', title: 'Serve it', class: 'num wide', by: v => v.active_count, cell: v => String(v.active_count)},
    {id: 'note', title: 'Note, or tag', cell: v => v.reason || v.note ? more(`${name}@${v.version}`, v.reason?.message || v.note) : v.tag},
  ];
  return [h('div', {class: 'head', key: 'head'}, heading(name), badges(a),
      a.held && h('span', {class: 'soft'}, resume(name)), a.base_model ? h('span', {class: 'soft'}, a.base_model) : null, h('span', {class: 'grow'}),
      h('span', {class: 'soft'}, current_text(a)), lag_pill(a), h('a', {href: '#/workers', 'data-filter': name}, 'Workers')),
    serving_bar(a), table('versions', `Versions of ${name}`, columns, [...of.data.versions].reverse(), v => v.version)];
}

/* ---- view: one version ---- */

const PHASES = ['announce', 'queued', 'waiting', 'connect', 'fetch', 'stage', 'activate'];
const phases_of = timing => PHASES.map(p => [p, timing?.[`${p}_ms`]]).filter(([, ms]) => ms > 0);
const total_ms = copy => phases_of(copy.timing).reduce((sum, [, ms]) => sum + ms, 0);

function phases_bar(copy, most_ms) {
  const parts = phases_of(copy.timing), words = parts.map(([p, ms]) => `${p} ${ms_text(ms)}`).join(', ');
  if (!parts.length) return '–';
  return h('div', {class: 'phases', role: 'img', 'aria-label': words, title: words,
                   style: {width: `${Math.max(6, 100 * total_ms(copy) / most_ms)}%`}},
    parts.map(([p, ms]) => h('i', {class: `p-${p}`, style: {'flex-grow': String(ms)}})));
}

/* From where a copy comes: what it asks now, else what gave it the most. */
function source_of(copy) {
  const most = [...copy.sources].sort((x, y) => y.bytes - x.bytes)[0];
  return copy.sources.find(s => s.name === copy.source) || most || (copy.source ? {name: copy.source, kind: 'worker', way: 'network', bytes: 0} : null);
}

/* Who fetched from whom, as rows with a depth: publishers, and other sources that are not copies, are roots. */
function tree_of(v) {
  const copies = new Map(v.workers.map(c => [c.worker, c])), below = new Map(), roots = new Map();
  for (const c of v.workers) {
    const source = source_of(c), parent = source ? source.name : '';
    if (!copies.has(parent)) roots.set(parent, source?.kind || 'none');
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(c);
  }
  const list = [], seen = new Set();
  const add = (c, depth, lead) => {
    if (seen.has(c.worker)) return;
    seen.add(c.worker);
    list.push({key: c.worker, copy: c, depth, lead});
    walk(c.worker, depth + 1, lead);
  };
  const walk = (name, depth, lead) => {
    const all = (below.get(name) || []).sort((x, y) => x.worker.localeCompare(y.worker, 'en', {numeric: true}));
    const trunk = depth > 1 ? lead.replace(/├ $/, '│ ').replace(/└ $/, '  ') : '';
    all.forEach((c, i) => add(c, depth, depth > 8 ? `${depth}· ` : `${trunk}${i === all.length - 1 ? '└ ' : '├ '}`));
  };
  for (const [name, kind] of [...roots].sort((x, y) => (x[1] > y[1] ? 1 : -1))) {
    list.push({key: `from ${name}`, root: name, kind});
    walk(name, 1, '');
  }
  for (const c of v.workers) add(c, 0, '');     // those of a circle
  return list;
}

const root_text = r => r.kind === 'publisher' ? `publisher ${r.root}` : r.root ? `${r.root} (no copy now)` : 'no source';

function tree_columns(v) {
  const most_ms = Math.max(1, ...v.workers.map(total_ms));
  const done = c => v.data_bytes ? Math.min(1, c.bytes_done / v.data_bytes) : 1;
  const tone = c => c.state === 'failed' ? 'failed' : done(c) >= 1 ? 'done' : '';
  const others = (c, s) => c.sources.filter(o => o.name !== s?.name).map(o => o.name);
  const note = c => [c.message, c.note, others(c, source_of(c)).length ? `also from ${others(c, source_of(c)).join(', ')}` : '',
                     source_of(c)?.way === 'host' ? 'shared memory of its host' : ''].filter(Boolean).join(' · ') || '–';
  return [
    {id: 'worker', title: 'Who fetched from whom', cell: r => r.copy
      ? [h('span', {class: 'limb', 'aria-hidden': 'true'}, r.lead), r.copy.worker,
         h('span', {class: 'sr'}, ` from ${source_of(r.copy)?.name || 'no source'}`)]
      : h('strong', {}, root_text(r))},
    {id: 'state', title: 'State', cell: r => r.copy ? state_pill_of_copy(r.copy) : ''},
    {id: 'progress', title: 'Bytes', class: '', cell: r => r.copy
      ? [h('span', {class: 'sr'}, `${Math.round(100 * done(r.copy))} % verified`), meter(done(r.copy), tone(r.copy))] : ''},
    {id: 'moved', title: 'Copied', class: 'num wide', cell: r => r.copy
      ? (source_of(r.copy)?.way === 'host' ? 'held' : bytes_text(r.copy.sources.reduce((sum, s) => sum + s.bytes, 0))) : ''},
    {id: 'rate', title: 'Rate', class: 'num narrow', cell: r => r.copy?.rate_bytes ? `${bytes_text(r.copy.rate_bytes)}/s` : ''},
    {id: 'phases', title: 'Phases', class: 'narrow', cell: r => r.copy ? phases_bar(r.copy, most_ms) : ''},
    {id: 'note', title: 'Note', cell: r => r.copy ? more(`${r.copy.worker}, ${r.copy.state || 'no bytes'}`, note(r.copy)) : ''},
  ];
}

const COPY_TONE = {active: 'active', failed: 'failed', stale: 'warn', announced: 'moving', fetching: 'moving', arrived: 'moving'};
const state_pill_of_copy = c => pill(COPY_TONE[c.state] || '', c.state || 'no bytes');

function reason_panel(v) {
  const e = v.reason, late = v.rollout?.missing || [];
  if (!e && !v.note && !v.unfinished) return null;
  const row = (title, text) => text ? [h('dt', {}, title), h('dd', {}, text)] : null;
  const where = e && [e.worker, e.phase && `phase ${e.phase}`].filter(Boolean).join(', ');
  return h('section', {class: `panel why ${e ? '' : 'note'}`, 'aria-label': e ? `Why it ${v.state === 'lost' ? 'is lost' : 'failed'}` : 'Note', key: 'why'},
    h('h2', {}, e ? e.message : v.note || `${v.unfinished.worker} does not serve it yet: ${v.unfinished.phase}, ${ms_text(v.unfinished.ms)}`),
    e && h('dl', {}, row('code', e.code), row('where', where), row('expected', e.expected), row('found', e.found),
      row('what to do', e.hint && with_code(e.hint)), late.slice(0, 5).map(m => row(`missing ${m.worker}`, m.message || m.code || `in phase ${m.phase || 'announce'}`)),
      late.length > 5 && row('missing', `and ${late.length - 5} more`)));
}

function progress_panel(v) {
  const p = v.progress, ends = v.took_ms ?? v.ended_after_ms ?? v.so_far_ms;
  const part = p?.all_bytes ? p.bytes_done / p.all_bytes : v.workers.length ? 1 : 0;
  const staged = v.rollout?.eligible_count == null ? '' : `staged on ${v.rollout.staged_count} of ${v.rollout.eligible_count}, active on ${v.rollout.active_count}`;
  const fact = (title, text) => text == null || text === '' ? null : h('div', {key: title}, h('dt', {}, title), h('dd', {}, text));
  return h('section', {class: 'panel big', 'aria-label': 'Progress', key: 'progress'},
    v.state === 'failed' ? null : meter(part, part >= 1 ? 'done' : ''),
    h('dl', {class: 'facts'},
      fact('Bytes at workers', p ? `${bytes_text(p.bytes_done)} of ${bytes_text(p.all_bytes)}${p.rate_bytes ? `, ${bytes_text(p.rate_bytes)}/s` : ''}` : null),
      fact('Rollout', staged), fact('Published', `${clock(v.created_at)} (${ago(v.created_at)})`),
      fact(v.took_ms != null ? 'To active' : v.ended_after_ms != null ? 'Ended after' : 'So far', ms_text(ends)),
      fact('Slowest', v.slowest ? `${v.slowest.worker}: ${v.slowest.phase} ${ms_text(v.slowest.ms)}` : null),
      fact('Step', v.step), fact('Size', `${bytes_text(v.data_bytes)}, ${count_of(v.tensor_count, 'tensor')}`),
      fact('Kind', [v.kind, ...v.features].join(', ')), fact('Holders', `${count_of(v.holder_count, 'worker')} on ${count_of(v.holder_host_count, 'host')}`),
      fact('By', v.writer), fact('Tag', h('code', {}, v.tag)),
      Object.entries(v.meta).slice(0, META_SHOWN).map(([name, text]) => fact(name, text))));
}

function view_version(name, number) {
  const a = status_feed().data?.adapters.find(one => one.name === name);
  const before = feeds.get(`one ${name}@${number}`)?.data?.versions[0];
  const f = feed(`one ${name}@${number}`, `/api/v1/versions/${encodeURIComponent(name)}@${number}`, before && !is_moving(before) ? 10000 : 500);
  const title = `${name}@${number}`, none = missing(f);
  if (none) return [heading(title), none];
  const v = f.data.versions[0], list = tree_of(v).filter(r => !r.copy || matches('tree', `${r.copy.worker} ${r.copy.state} ${r.copy.note || ''}`));
  return [h('div', {class: 'head', key: 'head'}, heading(title), state_pill(state_of(v, a)), h('span', {class: 'grow'}),
      v.version > 1 ? h('a', {href: ref(name, v.version - 1)}, `← v${v.version - 1}`) : null,
      h('a', {href: `#/adapters/${encodeURIComponent(name)}`}, `all of ${name}`),
      a?.newest?.version > v.version ? h('a', {href: ref(name, v.version + 1)}, `v${v.version + 1} →`) : null),
    reason_panel(v), progress_panel(v),
    v.workers.length ? h('div', {class: 'head', key: 'filter'}, filter_box('tree', 'Filter workers'),
      h('div', {class: 'legend narrow'}, PHASES.map(p => h('span', {}, h('i', {class: `p-${p}`}), p)))) : null,
    v.workers.length ? table('tree', `Who fetched ${title} from whom`, tree_columns(v), list, r => r.key)
                     : h('p', {class: 'empty', key: 'none'}, 'No worker has any of its bytes.')];
}

/* ---- view: workers ---- */

/* One row for each adapter of a worker; what is said of it is what holds it back. */
let subscribed_of = null, subscribed = [];
function subscriptions(body) {
  if (subscribed_of === body) return subscribed;
  subscribed_of = body;
  return subscribed = body.workers.flatMap(w => (w.adapters.length ? w.adapters : [null]).map(s => {
    const why = s?.note || s?.message || w.relay_why || '';
    const labels = Object.entries(w.labels).map(([k, v]) => `${k}=${v}`).join(' ');
    return {w, s, key: `${w.name} ${s?.name || ''}`, why, place: labels ? `${w.host} · ${labels}` : w.host,
            text: `${w.name} ${w.host} ${w.state} ${s?.name || ''} ${s?.state || ''} ${why} ${labels} ${s?.version ? `v${s.version}` : 'none'}`};
  }));
}

const WORKER_TONE = {ready: 'active', draining: 'warn', left: '', lost: 'lost'};
const WORKER_COLUMNS = [
  {id: 'worker', title: 'Worker', by: r => r.w.name,     // a small screen has no room for the next column
   cell: r => Object.keys(r.w.labels).length ? more(r.w.name, r.w.name, r.place) : r.w.name},
  {id: 'host', title: 'Host, labels', class: 'wide', by: r => r.place, cell: r => r.place},
  {id: 'state', title: 'State', class: 'narrow', by: r => r.w.state, cell: r => pill(WORKER_TONE[r.w.state], r.w.state)},
  {id: 'adapter', title: 'Adapter', by: r => r.s?.name || '',
   cell: r => r.s ? h('a', {href: `#/adapters/${encodeURIComponent(r.s.name)}`}, r.s.name) : '–'},
  {id: 'serves', title: 'Serves', class: 'num', by: r => r.s?.version || 0,
   cell: r => r.s?.version ? h('a', {href: ref(r.s.name, r.s.version)}, `v${r.s.version}`) : 'none'},
  {id: 'lag', title: 'Lag', class: 'num', by: r => r.s?.lag || 0, cell: r => r.s ? (r.s.lag ? pill('warn', r.s.lag) : '0') : '–'},
  {id: 'doing', title: 'Now, and why', by: r => r.s?.fetching ? 1 + r.s.fetching.bytes_done : 0, cell: r => {
    const now = r.s?.fetching, about = `${r.w.name}${r.s ? `, ${r.s.name}` : ''}`;
    if (!now) return r.why ? more(about, r.why) : r.s?.state || '–';
    const rate = now.rate_bytes ? `, ${bytes_text(now.rate_bytes)}/s` : '';
    return more(about, `v${now.version}: ${bytes_text(now.bytes_done)} of ${bytes_text(now.data_bytes)}${rate}${now.source ? ` from ${now.source}` : ''}${r.why ? ` · ${r.why}` : ''}`);
  }},
  {id: 'in', title: 'Fetched', class: 'num wide', by: r => r.w.counters.bytes_in, cell: r => bytes_text(r.w.counters.bytes_in)},
  {id: 'out', title: 'Served', class: 'num wide', by: r => r.w.counters.bytes_out, cell: r => bytes_text(r.w.counters.bytes_out)},
  {id: 'heard', title: 'Silent', class: 'num wide', by: r => r.w.heartbeat_age_ms, cell: r => ms_text(Math.round(r.w.heartbeat_age_ms / 100) * 100)},
];

function view_workers() {
  const f = workers_feed(), none = missing(f);
  status_feed();
  if (none) return [heading('Workers'), none];
  const all = subscriptions(f.data);
  const found = all.filter(r => (!choices.behind || r.s?.lag || r.w.state !== 'ready') && matches('workers', r.text));
  return [h('div', {class: 'head', key: 'head'}, heading('Workers'), filter_box('workers', 'Filter workers'),
      check_box('behind', 'only behind or not ready'), h('span', {class: 'grow'}),
      h('span', {class: 'soft', role: 'status'}, found.length === all.length ? count_of(all.length, 'row') : `${found.length} of ${count_of(all.length, 'row')}`)),
    found.length ? table('workers', 'Workers and what they serve', WORKER_COLUMNS, found, r => r.key)
                 : h('p', {class: 'empty', key: 'none'}, all.length ? 'No worker matches the filter.' : 'No worker has joined. Start one with: heddle worker --adapter NAME')];
}

/* ---- view: events ---- */

const is_failure = e => Boolean(e.code) || /failed|lost|bad|fenced|refused|gap/.test(e.type);
const event_tone = e => is_failure(e) ? 'bad' : /activated|activate.done/.test(e.type) ? 'active' : /published|stage/.test(e.type) ? 'moving' : '';
const event_pill = e => pill(event_tone(e), e.type);
const EVENT_COLUMNS = [
  {id: 'time', title: 'Time', by: e => e.epoch * 1e12 + e.seq, cell: e => clock(e.at)},
  {id: 'type', title: 'Event', by: e => e.type, cell: e => event_pill(e)},
  {id: 'version', title: 'Version', class: 'narrow', by: e => e.adapter || '',
   cell: e => e.adapter && e.version ? h('a', {href: ref(e.adapter, e.version)}, `${e.adapter}@${e.version}`) : e.adapter || '–'},
  {id: 'worker', title: 'Who', class: 'wide', by: e => e.worker || '', cell: e => e.worker || '–'},
  {id: 'message', title: 'What', cell: e => more(`${e.type}, ${clock(e.at)}`, [e.code, e.message, e.data?.by && `by ${e.data.by}`, e.data?.source && `source ${e.data.source}`,
     e.data?.duration_ms != null && ms_text(e.data.duration_ms), e.data?.bytes && bytes_text(e.data.bytes)].filter(Boolean).join(' · ') || '–')},
];

function view_events() {
  status_feed();
  const found = events.filter(e => (!choices.failures || is_failure(e)) &&
    matches('events', `${e.type} ${e.adapter || ''}@${e.version || ''} ${e.worker || ''} ${e.code || ''} ${e.message || ''}`)).reverse();
  return [h('div', {class: 'head', key: 'head'}, heading('Events'), filter_box('events', 'Filter events'),
      check_box('failures', 'only failures'), h('span', {class: 'grow'}), h('span', {class: 'soft', role: 'status'}, count_of(found.length, 'event'))),
    found.length ? table('events', 'Events, the newest first', EVENT_COLUMNS, found, e => `${e.epoch}-${e.seq}`)
                 : h('p', {class: 'empty', key: 'none'}, 'No event matches.')];
}

/* ---- frame ---- */

const VIEWS = [
  {path: /^$|^#\/$|^#\/adapters\/?$/, nav: '#/adapters', draw: view_adapters, title: () => 'Adapters'},
  {path: /^#\/adapters\/([^/]+)$/, nav: '#/adapters', draw: view_adapter, title: name => name},
  {path: /^#\/versions\/([^/@]+)@(\d+)$/, nav: '#/adapters', draw: view_version, title: (name, number) => `${name}@${number}`},
  {path: /^#\/workers$/, nav: '#/workers', draw: view_workers, title: () => 'Workers'},
  {path: /^#\/events$/, nav: '#/events', draw: view_events, title: () => 'Events'},
];

function route() {
  for (const view of VIEWS) {
    const found = view.path.exec(location.hash);
    if (found) return {view, names: found.slice(1).map(decodeURIComponent)};
  }
  return {view: VIEWS[0], names: []};
}

function notices() {
  const away = `The broker ${link.why}. What is shown is from before ${clock(link.since)}. The page tries again every second.`;
  const list = [];
  if (link.state === 'lost') list.push(h('p', {class: 'notice bad', key: 'lost'}, h('strong', {}, 'Lost the broker. '), away));
  if (link.back && Date.now() - link.back.at < 10000)
    list.push(h('p', {class: 'notice good', key: 'back'}, `The broker is back, after ${ms_text(Math.round(link.back.away_ms / 100) * 100)}.`));
  if (link.gap && Date.now() - link.gap.at < 60000) list.push(h('p', {class: 'notice', key: 'gap'}, h('strong', {}, 'Events are missing: '), link.gap.message));
  if (other && Date.now() - other.at < 60000)
    list.push(h('p', {class: 'notice', key: 'other'}, h('strong', {}, 'Here is another cluster: '), `${cluster}, before it was ${other.was}.`));
  if (release !== first_release)
    list.push(h('p', {class: 'notice', key: 'release'}, `The broker is now Heddle ${release}; this page is of ${first_release}.`,
      h('button', {type: 'button', 'data-reload': true}, 'Load the page again')));
  const settling_ms = feeds.get('status')?.data?.broker.settling_ms;
  if (link.state === 'live' && settling_ms) list.push(h('p', {class: 'notice', key: 'settling'}, 'The broker has just started: members come back, and it decides nothing yet.'));
  return list;
}

function draw_frame(view) {
  const body = feeds.get('status')?.data;
  const items = [['#/adapters', 'Adapters', body?.count.adapters], ['#/workers', 'Workers', body?.count.workers_ready], ['#/events', 'Events', null]];
  patch_kids(document.getElementById('nav'), items.map(([to, text, n]) =>
    h('a', {href: to, 'aria-current': view.nav === to ? 'page' : null}, text, n == null ? null : h('span', {}, n.toLocaleString('en')))));
  patch_kids(document.getElementById('cluster'), body ? [body.broker.cluster] : []);
  const words = {new: 'connecting', live: 'live', lost: 'lost the broker'};
  const el = document.getElementById('link');
  el.className = `link ${link.state}`;
  patch_kids(el, [words[link.state]]);
  patch_kids(document.getElementById('notices'), notices());
}

let is_due = false, last_view = '';

function draw() {
  is_due = false;
  drawing++;
  const {view, names} = route(), main = document.getElementById('main'), now = `${view.nav} ${names}`;
  const kids = view.draw(...names);
  if (now !== last_view) main.replaceChildren();
  patch_kids(main, kids.filter(Boolean));
  draw_frame(view);
  if (now !== last_view) {
    document.title = `${view.title(...names)} – Heddle`;
    for (const el of main.querySelectorAll('[data-choice]')) {
      if (el.type === 'checkbox') el.checked = Boolean(choices[el.dataset.choice]);
      else el.value = choices[el.dataset.choice] || '';
    }
    if (last_view) main.querySelector('h1')?.focus({preventScroll: true});
    last_view = now;
  }
  measure();
  for (const f of feeds.values()) if (f.used === drawing) f.go();
}

function draw_soon() {
  if (is_due) return;
  is_due = true;
  requestAnimationFrame(draw);
}

/* A feed that is no longer needed goes when there are many. */
function forget_feeds() {
  if (feeds.size < 400) return;
  for (const [name, f] of feeds) if (f.used !== drawing && !f.is_asked) feeds.delete(name);
}

/* ---- what the reader does ---- */

document.addEventListener('scroll', e => { if (e.target.dataset?.rows) measure(); }, true);
addEventListener('resize', draw_soon);
addEventListener('hashchange', draw_soon);
document.addEventListener('input', e => {
  const {choice} = e.target.dataset;
  if (!choice) return;
  choices[choice] = e.target.type === 'checkbox' ? e.target.checked : e.target.value;
  draw_soon();
});
document.addEventListener('click', e => {
  const el = e.target.closest('[data-order], [data-filter], [data-reload], [data-more], #whole-close, #skip');
  if (!el) return;
  if (el.dataset.more) {
    document.getElementById('whole-title').textContent = el.dataset.about;
    document.getElementById('whole-text').textContent = el.dataset.more;
    document.getElementById('whole').showModal();
  } else if (el.id === 'whole-close') {
    document.getElementById('whole').close();
  } else if (el.id === 'skip') {
    e.preventDefault();
    document.getElementById('main').focus();
  } else if (el.dataset.filter) {
    choices.workers = el.dataset.filter;
  } else if (el.dataset.order) {
    const [name, id] = el.dataset.order.split(' '), key = `${name} order`, had = choices[key];
    choices[key] = had?.id === id ? (had.down ? null : {id, down: true}) : {id, down: false};
  } else {
    location.reload();
  }
  draw_soon();
});
document.addEventListener('keydown', e => {
  if (e.key !== '/' || e.target.matches('input, select')) return;
  const box = document.querySelector('main input[type=search]');
  if (!box) return;
  e.preventDefault();
  box.focus();
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) stop?.abort();           // a browser has few connections to one address
  for (const f of feeds.values()) f.is_stale = true;
  draw_soon();
});
document.getElementById('token-form').addEventListener('submit', e => {
  e.preventDefault();
  const box = document.getElementById('token-text');
  token = box.value.trim();
  sessionStorage.setItem('heddle-token', token);
  box.value = '';
  document.getElementById('token').close();
  for (const f of feeds.values()) f.is_stale = true;
  draw_soon();
});

setInterval(() => { if (!document.hidden) forget_feeds(), draw_soon(); }, 1000);
draw();
follow();
