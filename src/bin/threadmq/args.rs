//! Arguments that several commands share, and how their values are read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use threadmq::pulsar::Compression;

/// Where the cluster is.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Service URL of the cluster: pulsar://host[:port][,host[:port]...]
    #[arg(long, value_name = "URL", default_value = "pulsar://127.0.0.1:6650")]
    pub url: String,
}

/// How messages are sent.
#[derive(Debug, Clone, Args)]
pub struct SendArgs {
    /// Body size of generated messages, in bytes; also 4k or 1M (of 1024)
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = size)]
    pub size: usize,
    /// Most messages that may be unanswered; sending waits for room [default: only the client's memory limit of
    /// 64 MiB, of which one producer takes half]
    #[arg(long, value_name = "MESSAGES", value_parser = positive)]
    pub inflight: Option<u64>,
    /// Whether messages are sent in batches (1000 messages, 128 KiB, 1 ms)
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub batching: Switch,
    /// Compression of batches and messages
    #[arg(long, default_value = "none")]
    pub compression: Codec,
    /// Time from the call to the answer, such as 200ms or 5s, from 1ms to 1d; `never` waits as long as it takes
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = send_timeout)]
    pub send_timeout: SendTimeout,
}

impl SendArgs {
    pub fn max_pending(&self) -> Option<usize> {
        self.inflight.map(|messages| usize::try_from(messages).unwrap_or(usize::MAX))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    None,
    Lz4,
    Zlib,
    Zstd,
    Snappy,
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::None => Self::None,
            Codec::Lz4 => Self::Lz4,
            Codec::Zlib => Self::Zlib,
            Codec::Zstd => Self::Zstd,
            Codec::Snappy => Self::Snappy,
        }
    }
}

/// `None` is `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendTimeout(pub Option<Duration>);

pub fn send_timeout(text: &str) -> Result<SendTimeout, String> {
    if text == "never" {
        return Ok(SendTimeout(None));
    }
    Ok(SendTimeout(Some(send_limit(text)?)))
}

/// A send timeout that exists.
pub fn send_limit(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    if !(Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&limit) {
        return Err("from 1ms to 1d".to_owned());
    }
    Ok(limit)
}

/// A number with a unit, such as `200ms`, `1.5s` or `2m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "" => return Err("the unit is missing: write 200ms, 5s or 2m".to_owned()),
        _ => return Err(format!("unknown unit `{unit}`: us, ms, s, m, h and d are known")),
    };
    let number: f64 = number.trim().parse().map_err(|_| "not a number with a unit, such as 200ms or 5s".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "out of range".to_owned())
}

/// A time span given as a plain number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 =
        text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(number) {
        Ok(span) if !span.is_zero() && number <= 365.0 * 86_400.0 => Ok(span),
        _ => Err("more than zero, at most a year".to_owned()),
    }
}

/// Bytes, `k` and `M` being 1024 and 1024².
pub fn size(text: &str) -> Result<usize, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix(['m', 'M']) {
            Some(number) => (number, 1 << 20),
            None => (text, 1usize),
        },
    };
    let number: usize = number.parse().map_err(|_| "not a number of bytes, such as 100, 4k or 1M".to_owned())?;
    number.checked_mul(factor).filter(|bytes| *bytes <= 1 << 30).ok_or_else(|| "at most 1 GiB".to_owned())
}

/// Messages a second.
pub fn rate(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of messages a second".to_owned())?;
    if number.is_finite() && number > 0.0 && number <= 1e9 {
        Ok(number)
    } else {
        Err("more than zero, at most a thousand million".to_owned())
    }
}

pub fn positive(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a whole number".to_owned()),
    }
}

/// A name that nobody has used, for topics and subscriptions of a trial.
pub fn fresh(purpose: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("threadmq-{purpose}-{}-{}", now.as_millis(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_number_and_a_unit() {
        for (text, millis) in [("200ms", 200), ("5s", 5000), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "5 parsecs", "1e300s", "nans", "infs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration("5").unwrap_err().contains("unit"));
    }

    #[test]
    fn send_timeouts_have_a_range_and_a_never() {
        assert_eq!(send_timeout("never"), Ok(SendTimeout(None)));
        assert_eq!(send_timeout("2s"), Ok(SendTimeout(Some(Duration::from_secs(2)))));
        assert!(send_timeout("0s").is_err());
        assert!(send_timeout("2d").is_err());
        assert!(send_limit("never").is_err());
    }

    #[test]
    fn sizes_and_rates_refuse_nonsense() {
        assert_eq!(size("100"), Ok(100));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1M"), Ok(1 << 20));
        assert!(size("99999999999M").is_err());
        assert!(size("-1").is_err());
        assert_eq!(rate("2000"), Ok(2000.0));
        for text in ["0", "-1", "NaN", "inf", "fast"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(positive("1_000"), Ok(1000));
        assert!(positive("0").is_err());
        assert!(seconds("0").is_err());
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
    }
}
