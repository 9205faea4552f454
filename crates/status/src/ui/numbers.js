// Formats counts, rates, sizes and times.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (number) => grouped.format(number);

export function rate(perSecond) {
  if (perSecond === null) return "–";
  return perSecond < 10 ? (Math.round(perSecond * 10) / 10).toString() : count(perSecond);
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (number >= 1024 && unit < 4) {
    number /= 1024;
    unit += 1;
  }
  const digits = unit > 0 && number < 10 ? 1 : 0;
  return `${number.toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** A measured time. */
export function time(seconds) {
  if (seconds === 0) return "0";
  const short = (number) => Number(number.toPrecision(2)).toString();
  if (seconds < 0.9995) return `${short(seconds * 1000)} ms`;
  return seconds < 60 ? `${short(seconds)} s` : age(seconds);
}

/** An age. */
export function age(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
});

/** A time of day, in the reader's zone; `second` is since 1970. */
export const dayTime = (second) => clock.format(second * 1000);

/** A day and a time of day, in the reader's zone; `second` is since 1970. */
export const dateTime = (second) => date.format(second * 1000);

export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
