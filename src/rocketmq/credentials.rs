//! Who a client is: access key, secret key and session token, given once or supplied anew by the user's code.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::engine::event::Fault;
use super::wire::headers::{Signature, Signer};
use crate::error::Error;
use crate::policy::renewal::Renewal;
use crate::runtime::blocking::Blocking;
use crate::runtime::thread::panic_text;

/// An access key and a secret key, with which every call is signed (`MQv2-HMAC-SHA1`), perhaps a session token, and
/// perhaps a time up to which they are good.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    access_key: String,
    secret_key: String,
    session_token: Option<String>,
    expires_at: Option<SystemTime>,
}

impl Credentials {
    /// Credentials that do not expire.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        let (access_key, secret_key) = (access_key.into(), secret_key.into());
        Self { access_key, secret_key, session_token: None, expires_at: None }
    }

    /// A session token goes along with every call (`x-mq-session-token`). None by default.
    pub fn session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// When they expire; by default never. A [`CredentialsProvider`] is asked for new ones before: when a tenth of the
    /// time is left, at most 5 minutes and at least 1 second. Those that it gave last are used until new ones come,
    /// also beyond their time: it is the server that refuses them.
    pub fn expires_at(mut self, at: SystemTime) -> Self {
        self.expires_at = Some(at);
        self
    }

    pub(super) fn signer(&self) -> Result<Signer, Error> {
        Signer::new(&self.access_key, &self.secret_key, self.session_token.as_deref())
    }

    /// How long they are still good.
    fn life(&self) -> Option<Duration> {
        self.expires_at.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Supplies [`Credentials`] that change while a client runs; see
/// [`ClientBuilder::credentials_provider`](super::ClientBuilder::credentials_provider). Closures are providers.
///
/// ```
/// use threadmq::rocketmq::{Client, Credentials};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder("localhost:8081")
///     .credentials_provider(|| {
///         let secret_key = std::fs::read_to_string("/run/secrets/rocketmq")?;
///         Ok(Credentials::new("billing", secret_key.trim()))
///     })
///     .build()?;
/// # client.close()?;
/// # Ok(())
/// # }
/// ```
pub trait CredentialsProvider: Send + Sync + 'static {
    /// The credentials that are good now.
    ///
    /// Asked before the first call, before those that it gave last expire, and when a server answers that it does not
    /// accept them (40100, UNAUTHORIZED); never twice at once, and at the soonest 3 s after the last answer. It runs on
    /// a thread of its own (`tmq-credentials`) and may block: calls go on with the present credentials, and wait, each
    /// up to its own timeout, only while there are none.
    ///
    /// # Errors
    ///
    /// Any, or a panic: what is in use stays in use. While there is nothing to use, calls fail with
    /// [`Authentication`](crate::ErrorKind::Authentication) and this error's text as their source, and sends end by
    /// their timeout.
    fn credentials(&self) -> Result<Credentials, Box<dyn StdError + Send + Sync>>;
}

impl<F> CredentialsProvider for F
where
    F: Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
{
    fn credentials(&self) -> Result<Credentials, Box<dyn StdError + Send + Sync>> {
        self()
    }
}

/// Where a client's credentials come from.
#[derive(Clone, Default)]
pub(super) enum Source {
    #[default]
    Nothing,
    Given(Credentials),
    Provider(Arc<dyn CredentialsProvider>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Given(_) => "given",
            Self::Provider(_) => "provider",
        })
    }
}

/// What a provider answered, or why it did not.
pub(super) type Supplied = Result<Credentials, String>;

/// Signs a client's calls. The driver's.
pub(super) struct Signing {
    signer: Option<Signer>,
    /// Rises with each change.
    generation: u64,
    supply: Option<Supply>,
}

struct Supply {
    provider: Arc<dyn CredentialsProvider>,
    blocking: Blocking,
    renewal: Renewal,
    present: Option<Credentials>,
    failure: String,
    tell: Arc<dyn Fn(Supplied) + Send + Sync>,
}

/// Whether calls can be signed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Signable {
    Now,
    /// Once the provider has answered.
    Later,
    Not(Fault),
}

/// What is to become of a call that was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There are newer credentials by now.
    Again,
    /// The provider is being asked.
    Wait,
    Final,
}

impl Signing {
    /// `tell` is handed what a provider answers, on a thread that may block.
    pub(super) fn new(source: Source, tell: impl Fn(Supplied) + Send + Sync + 'static) -> Result<Self, Error> {
        let (signer, supply) = match source {
            Source::Nothing => (None, None),
            Source::Given(credentials) => (Some(credentials.signer()?), None),
            Source::Provider(provider) => {
                let supply = Supply {
                    provider,
                    blocking: Blocking::new("credentials", 1),
                    renewal: Renewal::default(),
                    present: None,
                    failure: String::new(),
                    tell: Arc::new(tell),
                };
                (None, Some(supply))
            }
        };
        Ok(Self { signer, generation: 0, supply })
    }

    /// Whether they can change.
    pub(super) fn changes(&self) -> bool {
        self.supply.is_some()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn sign(&mut self, unix_seconds: u64) -> Option<&Signature> {
        self.signer.as_mut().map(|signer| signer.sign(unix_seconds))
    }

    pub(super) fn signable(&mut self, now: Instant) -> Signable {
        let Some(supply) = self.supply.as_mut().filter(|_| self.signer.is_none()) else { return Signable::Now };
        if supply.renewal.is_under_way() || supply.ask(now) {
            Signable::Later
        } else {
            Signable::Not(Fault::Credentials { reason: supply.failure.clone() })
        }
    }

    /// Why there is no signature yet.
    pub(super) fn unanswered() -> Fault {
        Fault::Credentials { reason: "it has not answered yet".to_owned() }
    }

    /// A call that was signed by this generation was refused.
    pub(super) fn refused(&mut self, now: Instant, generation: u64) -> Refused {
        let Some(supply) = &mut self.supply else { return Refused::Final };
        if generation < self.generation {
            Refused::Again
        } else if supply.renewal.is_under_way() || supply.ask(now) {
            Refused::Wait
        } else {
            Refused::Final
        }
    }

    /// Whether an answer is awaited.
    pub(super) fn is_waiting(&self) -> bool {
        self.supply.as_ref().is_some_and(|supply| supply.renewal.is_under_way())
    }

    pub(super) fn supplied(&mut self, now: Instant, answer: Supplied) {
        let Some(supply) = &mut self.supply else { return };
        let checked = answer.and_then(|credentials| match credentials.signer() {
            Ok(signer) => Ok((credentials, signer)),
            Err(error) => Err(error.to_string()),
        });
        match checked {
            Ok((credentials, signer)) => {
                supply.renewal.answered(now, credentials.life());
                if supply.present.as_ref() != Some(&credentials) {
                    supply.present = Some(credentials);
                    self.signer = Some(signer);
                    self.generation += 1;
                }
            }
            Err(failure) => {
                let stays = if self.signer.is_some() { "those in use stay in use" } else { "calls wait for it" };
                log::warn!("the credentials provider gave none, {stays}: {failure}");
                supply.renewal.failed(now);
                supply.failure = failure;
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.supply.as_ref().and_then(|supply| supply.renewal.poll_timeout())
    }

    pub(super) fn due(&mut self, now: Instant) {
        if let Some(supply) = &mut self.supply {
            if supply.renewal.poll_timeout().is_some_and(|at| at <= now) {
                supply.ask(now);
            }
        }
    }
}

impl Supply {
    /// Whether the provider is asked.
    fn ask(&mut self, now: Instant) -> bool {
        if !self.renewal.ask(now) {
            return false;
        }
        let (provider, tell) = (Arc::clone(&self.provider), Arc::clone(&self.tell));
        let asked = self.blocking.run(move || {
            let answer = catch_unwind(AssertUnwindSafe(|| provider.credentials().map_err(|error| error.to_string())));
            tell(answer.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_text(&*panic)))));
        });
        if let Err(error) = asked {
            self.failure = format!("it was not asked: {error}");
            self.renewal.failed(now);
        }
        self.renewal.is_under_way()
    }
}
