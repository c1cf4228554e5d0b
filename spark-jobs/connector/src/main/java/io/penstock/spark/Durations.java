package io.penstock.spark;

import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Spans of time as Spark's options write them: {@code 15m}, {@code 500ms}, {@code 30s}. */
final class Durations {
  private static final Pattern FORM = Pattern.compile("\\s*(\\d+)\\s*([a-z]*)\\s*");
  private static final Map<String, TimeUnit> UNITS = Map.of(
      "", TimeUnit.MILLISECONDS,
      "ms", TimeUnit.MILLISECONDS,
      "s", TimeUnit.SECONDS,
      "m", TimeUnit.MINUTES,
      "min", TimeUnit.MINUTES,
      "h", TimeUnit.HOURS,
      "d", TimeUnit.DAYS);

  private Durations() {}

  static long millis(String option, String text) {
    Matcher match = FORM.matcher(text.toLowerCase(Locale.ROOT));
    if (match.matches() && UNITS.containsKey(match.group(2))) {
      return UNITS.get(match.group(2)).toMillis(Long.parseLong(match.group(1)));
    }
    throw new IllegalArgumentException("Option '" + option + "' must be a time such as 15m or 30s, not '" + text + "'");
  }
}
