//! Hours of a week, in the local time of the node.

use chrono::{Datelike, Local, Timelike};
use std::fmt;
use std::str::FromStr;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAY: u32 = 24 * 60;
const WEEK: u32 = 7 * DAY;

/// A minute of the week in local time. Written as `fri 18:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeekMinute(u32);

impl WeekMinute {
    /// The present minute.
    pub fn now() -> Self {
        let now = Local::now();
        Self(now.weekday().num_days_from_monday() * DAY + now.hour() * 60 + now.minute())
    }
}

impl FromStr for WeekMinute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no time of a week; write it as \"fri 18:00\"");
        let (day, time) = text.split_once(' ').ok_or_else(bad)?;
        let minute = minute_of_day(time).filter(|minute| *minute < DAY).ok_or_else(bad)?;
        Ok(Self(day_number(day).ok_or_else(bad)? * DAY + minute))
    }
}

impl fmt::Display for WeekMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (day, minute) = ((self.0 / DAY) as usize % DAYS.len(), self.0 % DAY);
        write!(f, "{} {:02}:{:02}", DAYS[day], minute / 60, minute % 60)
    }
}

/// Hours of some days: `mon-fri 20:00-06:00`, `sat,sun`, or `12:00-13:00` for each day. An end that is not after the
/// begin is on the next day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeekHours {
    text: String,
    days: [bool; 7],
    /// Minute of the day.
    begin: u32,
    /// First minute after these hours, counted from the midnight before the begin: over [`DAY`] if on the next day.
    end: u32,
}

impl WeekHours {
    /// Whether these hours contain this minute.
    pub fn contains(&self, at: WeekMinute) -> bool {
        (0u32..)
            .zip(self.days)
            .filter(|(_, is_meant)| *is_meant)
            .any(|(day, _)| {
                let since = (at.0 + WEEK - (day * DAY + self.begin)) % WEEK;
                since < self.end - self.begin
            })
    }
}

impl fmt::Display for WeekHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for WeekHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} are no hours of a week; write them as \"mon-fri 20:00-06:00\"");
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, hours) = match words[..] {
            [one] if one.contains(':') => (None, Some(one)),
            [days] => (Some(days), None),
            [days, hours] => (Some(days), Some(hours)),
            _ => return Err(bad()),
        };
        let days = days.map_or(Some([true; 7]), days_in).ok_or_else(bad)?;
        let (begin, end) = hours.map_or(Some((0, DAY)), hours_in).ok_or_else(bad)?;
        let text = text.to_owned();
        Ok(Self { text, days, begin, end })
    }
}

fn days_in(text: &str) -> Option<[bool; 7]> {
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day_number(first)?, day_number(last)?);
        for day in first..=last + if last < first { 7 } else { 0 } {
            days[day as usize % 7] = true;
        }
    }
    Some(days)
}

fn hours_in(text: &str) -> Option<(u32, u32)> {
    let (begin, end) = text.split_once('-')?;
    let begin = minute_of_day(begin).filter(|begin| *begin < DAY)?;
    let end = minute_of_day(end)?;
    Some((begin, if end > begin { end } else { end + DAY }))
}

fn day_number(text: &str) -> Option<u32> {
    let day = DAYS.iter().position(|day| *day == text)?;
    u32::try_from(day).ok()
}

/// Minute of `HH:MM`, up to `24:00`.
fn minute_of_day(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hour) || !digits(minute) {
        return None;
    }
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    let at = hour * 60 + minute;
    (minute < 60 && at <= DAY).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_hold_their_minutes_also_over_midnight_and_the_end_of_the_week() {
        for (hours, inside, outside) in [
            ("12:00-13:00", "mon 12:00,sun 12:59", "mon 11:59,mon 13:00"),
            ("sat,sun", "sat 00:00,sun 23:59", "fri 23:59,mon 00:00"),
            (
                "mon-fri 20:00-06:00",
                "mon 20:00,tue 05:59,sat 05:59",
                "mon 05:59,tue 06:00,sat 20:00",
            ),
            ("sun 22:00-02:00", "sun 22:00,mon 01:59", "mon 02:00,sat 23:00"),
            ("fri-mon", "fri 00:00,sat 10:00,mon 23:59", "tue 00:00,thu 23:59"),
            ("tue 08:00-24:00", "tue 08:00,tue 23:59", "wed 00:00,tue 07:59"),
            ("mon 08:00-08:00", "mon 08:00,tue 07:59", "mon 07:59,tue 08:00"),
        ] {
            let parsed: WeekHours = hours.parse().expect(hours);
            let at = |text: &str| text.parse::<WeekMinute>().expect("a time");
            for minute in inside.split(',') {
                assert!(parsed.contains(at(minute)), "{minute} is not in {hours}");
            }
            for minute in outside.split(',') {
                assert!(!parsed.contains(at(minute)), "{minute} is in {hours}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_hours() {
        for bad in [
            "",
            "mon-",
            "monday",
            "mon tue",
            "8:00-9:00",
            "24:00-24:00",
            "08:60-09:00",
            "mon 08:00",
            "08:00-09:00-10:00",
            "mon 1:00-02:00 x",
            "é:00-02:00",
            "-",
            ",",
            "25:00-26:00",
        ] {
            assert!(bad.parse::<WeekHours>().is_err(), "{bad:?}");
        }
        for bad in ["", "mon", "18:00", "mon 24:00", "mon  18:00", "x 18:00"] {
            assert!(bad.parse::<WeekMinute>().is_err(), "{bad:?}");
        }
        let minute: WeekMinute = "sun 23:59".parse().expect("a time");
        assert_eq!(minute.to_string(), "sun 23:59");
        assert!(WeekMinute::now().0 < WEEK);
    }
}
