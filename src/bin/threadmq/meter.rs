//! What a run costs: time, processor time and memory of this process, and the spread of latencies.

use std::fs;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::outcome::Failure;

/// From the start of the measured part to its end.
pub struct Meter {
    started: Instant,
    cpu: Option<Duration>,
}

pub struct Measured {
    pub elapsed: Duration,
    pub cpu: Option<Duration>,
}

impl Meter {
    pub fn start() -> Self {
        Self { cpu: cpu_time(), started: Instant::now() }
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    pub fn stop(self) -> Measured {
        let elapsed = self.started.elapsed();
        let cpu = self.cpu.zip(cpu_time()).map(|(before, after)| after.saturating_sub(before));
        Measured { elapsed, cpu }
    }
}

/// User and system time of all threads so far; `None` where the system does not say.
///
/// `/proc/self/stat` counts ended threads too, but in steps of 10 ms; the scheduler's figures of the living threads
/// are in nanoseconds. The finer figure is used within the bounds of the coarser.
fn cpu_time() -> Option<Duration> {
    const STEP: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is a name in parentheses that may hold anything; the 14th and 15th are the times.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let steps: u32 = fields.next()?.parse::<u32>().ok()?.saturating_add(fields.next()?.parse().ok()?);
    let coarse = STEP.saturating_mul(steps);
    let fine = threads_time().unwrap_or(coarse);
    Some(fine.clamp(coarse, coarse + 2 * STEP))
}

fn threads_time() -> Option<Duration> {
    let mut total = 0u64;
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end between the listing and the look.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        total = total.saturating_add(text.split_ascii_whitespace().next()?.parse().ok()?);
    }
    (total > 0).then(|| Duration::from_nanos(total))
}

/// Most memory that was resident since the start, in MiB; `None` where the system does not say.
pub fn peak_memory_mib() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Latencies in microseconds, to three digits, up to an hour.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Result<Self, Failure> {
        const HOUR: u64 = 3_600_000_000;
        let histogram = Histogram::new_with_bounds(1, HOUR, 3);
        histogram.map(Self).map_err(|error| Failure::of("latencies cannot be counted", &error))
    }

    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// `None` if nothing was recorded.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile))
    }

    pub fn max(&self) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn processor_time_grows_with_work() {
        let meter = Meter::start();
        let started = Instant::now();
        let mut sum = 0u64;
        while started.elapsed() < Duration::from_millis(200) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let measured = meter.stop();
        let cpu = measured.cpu.unwrap();
        assert!(cpu > Duration::from_millis(1), "{cpu:?}");
        assert!(peak_memory_mib().unwrap() > 1.0);
    }

    #[test]
    fn quantiles_of_nothing_are_none() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.quantile(0.5), None);
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros));
        }
        assert_eq!((latencies.quantile(0.5), latencies.max()), (Some(500), Some(1000)));
    }
}
