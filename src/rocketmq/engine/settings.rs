//! What the server says of how to behave, and what it is told.

use std::time::Duration;

use super::EngineOptions;
use super::event::{Role, SessionSpec};
use crate::rocketmq::message::resource;
use crate::rocketmq::wire::pb;

/// A server that asks for longer pauses is not taken at its word.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Largest body until the server says otherwise.
pub(crate) const DEFAULT_MAX_BODY_SIZE: usize = 4 * 1024 * 1024;

/// The server's values, replaced as a whole by each reply.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub max_body_size: usize,
    pub validate_message_type: bool,
    pub pause: Pause,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body_size: DEFAULT_MAX_BODY_SIZE,
            validate_message_type: true,
            pause: Pause::Exponential {
                initial: Duration::from_millis(10),
                max: Duration::from_secs(1),
                multiplier: 2.0,
            },
        }
    }
}

/// How long to wait before another attempt (`RetryPolicy.strategy`).
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pause {
    Exponential {
        initial: Duration,
        max: Duration,
        multiplier: f32,
    },
    /// One for each attempt; the last one repeats.
    Customized(Vec<Duration>),
}

impl Pause {
    /// Before the attempt after `attempt` of them; the first is 1.
    pub(super) fn after(&self, attempt: u32) -> Duration {
        self.asked_for(attempt).min(LONGEST_PAUSE)
    }

    fn asked_for(&self, attempt: u32) -> Duration {
        let index = attempt.max(1) - 1;
        match self {
            Self::Exponential { initial, max, multiplier } => {
                let factor = f64::from(multiplier.max(0.0)).powi(i32::try_from(index).unwrap_or(i32::MAX));
                let seconds = initial.as_secs_f64() * factor;
                // Not a number, or beyond what a duration holds: the limit is meant.
                if seconds.is_finite() && seconds < max.as_secs_f64() {
                    Duration::from_secs_f64(seconds.max(0.0))
                } else {
                    *max
                }
            }
            Self::Customized(steps) => {
                let index = usize::try_from(index).unwrap_or(usize::MAX).min(steps.len().saturating_sub(1));
                steps.get(index).copied().unwrap_or_default()
            }
        }
    }

    fn of(policy: &pb::RetryPolicy) -> Option<Self> {
        match policy.strategy.as_ref()? {
            pb::retry_policy::Strategy::ExponentialBackoff(exponential) => Some(Self::Exponential {
                initial: duration(exponential.initial.as_ref())?,
                max: duration(exponential.max.as_ref())?,
                multiplier: exponential.multiplier,
            }),
            pb::retry_policy::Strategy::CustomizedBackoff(customized) => {
                let steps: Vec<Duration> =
                    customized.next.iter().map(|step| duration(Some(step))).collect::<Option<_>>()?;
                (!steps.is_empty()).then_some(Self::Customized(steps))
            }
        }
    }
}

impl Settings {
    /// What the server sent, over the defaults: a value that it leaves out or that makes no sense stays ours.
    pub(super) fn of(settings: &pb::Settings) -> Self {
        let mut merged = Self::default();
        if let Some(pause) = settings.backoff_policy.as_ref().and_then(Pause::of) {
            merged.pause = pause;
        }
        if let Some(pb::settings::Pub_sub::Publishing(publishing)) = &settings.pub_sub {
            merged.validate_message_type = publishing.validate_message_type;
            if let Some(size) = usize::try_from(publishing.max_body_size).ok().filter(|size| *size > 0) {
                merged.max_body_size = size;
            }
        }
        merged
    }
}

/// What a session tells of itself on each stream.
pub(super) fn ours(spec: &SessionSpec, options: &EngineOptions) -> pb::TelemetryCommand {
    let user_agent = pb::UA {
        language: pb::Language::RUST.into(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: options.platform.clone(),
        ..Default::default()
    };
    let (client_type, pub_sub) = match &spec.role {
        Role::Producer(producer) => {
            let topics =
                producer.topics.iter().filter_map(|topic| resource(&spec.namespace, topic).into_option()).collect();
            let publishing = pb::Publishing {
                topics,
                max_body_size: i32::try_from(DEFAULT_MAX_BODY_SIZE).unwrap_or(i32::MAX),
                validate_message_type: true,
                ..Default::default()
            };
            (pb::ClientType::PRODUCER, pb::settings::Pub_sub::Publishing(publishing))
        }
        Role::SimpleConsumer(consumer) => {
            let entry = |(topic, filter): (&String, &pb::FilterExpression)| pb::SubscriptionEntry {
                topic: resource(&spec.namespace, topic),
                expression: protobuf::MessageField::some(filter.clone()),
                ..Default::default()
            };
            let subscription = pb::Subscription {
                group: resource(&spec.namespace, &consumer.group),
                subscriptions: consumer.subscriptions.iter().map(entry).collect(),
                long_polling_timeout: protobuf::MessageField::some(consumer.await_duration.into()),
                ..Default::default()
            };
            (pb::ClientType::SIMPLE_CONSUMER, pb::settings::Pub_sub::Subscription(subscription))
        }
    };
    let settings = pb::Settings {
        client_type: Some(client_type.into()),
        access_point: protobuf::MessageField::some(options.access.to_proto()),
        request_timeout: protobuf::MessageField::some(spec.request_timeout.into()),
        user_agent: protobuf::MessageField::some(user_agent),
        pub_sub: Some(pub_sub),
        ..Default::default()
    };
    pb::TelemetryCommand { command: Some(pb::telemetry_command::Command::Settings(settings)), ..Default::default() }
}

fn duration(value: Option<&protobuf::well_known_types::duration::Duration>) -> Option<Duration> {
    let value = value?;
    Some(Duration::new(
        u64::try_from(value.seconds).ok()?,
        u32::try_from(value.nanos).ok().filter(|n| *n < 1_000_000_000)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn exponential_pauses_grow_to_their_limit() {
        let pause = Pause::Exponential { initial: MS * 5, max: MS * 1000, multiplier: 5.0 };
        let pauses: Vec<_> = (1..=6).map(|attempt| pause.after(attempt).as_millis()).collect();
        assert_eq!(pauses, [5, 25, 125, 625, 1000, 1000]);
        assert_eq!(pause.after(u32::MAX), MS * 1000);
        assert_eq!(pause.after(0), MS * 5, "there is no attempt before the first");
    }

    #[test]
    fn customized_pauses_repeat_their_last() {
        let pause = Pause::Customized(vec![MS, MS * 2]);
        assert_eq!([1, 2, 3, 9].map(|attempt| pause.after(attempt)), [MS, MS * 2, MS * 2, MS * 2]);
    }

    #[test]
    fn absurd_pauses_are_cut() {
        let max = Duration::new(i64::MAX as u64, 0);
        assert_eq!(Pause::Customized(vec![max]).after(1), LONGEST_PAUSE);
        for multiplier in [f32::MAX, f32::INFINITY, f32::NAN, -1.0, 2.0] {
            let pause = Pause::Exponential { initial: max, max, multiplier };
            assert!((1..5).all(|attempt| pause.after(attempt) <= LONGEST_PAUSE), "{multiplier}");
        }
    }

    #[test]
    fn nonsense_leaves_the_defaults() {
        let mut settings = pb::Settings::new();
        let mut policy = pb::RetryPolicy::new();
        policy.set_customized_backoff(pb::CustomizedBackoff::new());
        settings.backoff_policy = protobuf::MessageField::some(policy);
        settings.set_publishing(pb::Publishing { max_body_size: -1, ..Default::default() });
        let merged = Settings::of(&settings);
        assert_eq!(merged, Settings { validate_message_type: false, ..Settings::default() });
    }
}
