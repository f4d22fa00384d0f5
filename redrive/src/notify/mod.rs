//! Telling people that tasks keep failing: by mail, by webhook, in a few messages however many tasks there are.
//!
//! A policy says when people are to be told of a task ([`Policy::notify`](crate::Policy::notify)); that is decided with
//! each failure, and done here.
//!
//! *State.* `redrive_notice` has one row for each task that people are to be told of: written in the transaction that
//! settles the failed attempt. Its `sent_to` names the channels that have it. `redrive_channel` has one row for each
//! channel: when it may be used next, how often it failed in a row, its last error.
//!
//! *Invariants.* There is one notice for a task at the most, and none once `notified_at` is set. One node sends at a time,
//! by a lock. A round sends to each channel that may be used one message about everything that it has not got yet, and
//! then, in one transaction, notes that. A notice that all channels have is deleted and its task marked, wherever that
//! is. A channel is used once in `digest_interval` at the most; the first message goes at once.
//!
//! Dead letters whose policy says *escalate* are reminded of by the same channels and in the same messages, again and again
//! until someone resolves, discards or takes over the letter: after `remind_every`, then twice that, three times. Reminders have
//! a table of their own, and are otherwise as safe as notices: see `store/remind.rs`.
//!
//! *Failure.* A channel that fails is tried again after 5 s, 10 s … up to 10 min; its notices stay, and others do not wait
//! for it or get anything twice. A node that dies, or loses the database, between sending and noting leaves a message that
//! will be sent again: a message is sent at least once, and exactly once if nothing happens in that moment. A task that succeeds, is cancelled or
//! dies meanwhile is still told of.

mod mail;
mod message;
mod webhook;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::clock::{Clock, Timestamp};
use crate::duration;
use crate::error::{Problems, Result};
use crate::id::TaskId;
use crate::store::{Notice, Reminder, Sent, Store};
use crate::task::storable;

pub use crate::secret::Secret;
pub use mail::{Encryption, Mail};
pub use message::Message;
pub use webhook::{Format, Webhook};

/// How people are told that tasks keep failing.
///
/// ```
/// use redrive::notify::NotifyConfig;
///
/// let config: NotifyConfig = serde_json::from_str(
///     r#"{
///         "digest_interval": "5m",
///         "channels": {
///             "ops": {"type": "mail", "host": "smtp.example.org", "from": "redrive@example.org", "to": ["ops@example.org"]},
///             "chat": {"type": "webhook", "format": "slack", "url": "https://hooks.slack.com/services/T/B/x"}
///         }
///     }"#,
/// )?;
/// config.validate().unwrap();
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotifyConfig {
    /// How long a channel is left alone after a message: what comes meanwhile is in the next one. Default: 1 min.
    #[serde(with = "duration")]
    pub digest_interval: Duration,
    /// How long after the first reminder of a dead letter that was escalated the second one comes; the next ones come after
    /// twice, three times that. Default: 1 h.
    #[serde(with = "duration")]
    pub remind_every: Duration,
    /// The channels by name; each gets every notice. The name is how a channel is known: under another name it is another
    /// one. All nodes should have the same. Default: none, at least one must be given.
    pub channels: BTreeMap<String, Channel>,
}

/// A way to reach people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Channel {
    /// By mail.
    Mail(Mail),
    /// By a POST to an address.
    Webhook(Webhook),
}

/// Why a message could not be sent: for people, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotifyError(String);

const MOST_CHANNELS: usize = 16;
const LONGEST_NAME: usize = 50;
/// What a channel may be given for one message: the lock is held for it.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of an error is kept.
const LONGEST_ERROR: usize = 500;
/// Notices in one message. What is more is in the next.
const MOST_NOTICES: u32 = 20_000;
/// Reminders that are written in one round. What is more is in the next.
const MOST_REMINDERS: u32 = 2_000;
/// The lock's name.
const LOCK: &str = "notices";

impl Default for NotifyConfig {
    fn default() -> Self {
        Self {
            digest_interval: Duration::from_secs(60),
            remind_every: Duration::from_secs(3600),
            channels: BTreeMap::new(),
        }
    }
}

impl NotifyConfig {
    /// Whether these values make sense; if not, all that is wrong with them.
    pub fn validate(&self) -> Result<()> {
        self.problems().into_result()
    }

    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        duration::check(self.digest_interval, "digest_interval", &mut problems);
        duration::check(self.remind_every, "remind_every", &mut problems);
        problems.require((1..=MOST_CHANNELS).contains(&self.channels.len()), "channels", || {
            format!("must be from 1 to {MOST_CHANNELS}, are {}", self.channels.len())
        });
        for (name, channel) in &self.channels {
            let mut inner = Problems::default();
            inner.require(is_name(name), "name", || {
                format!("must be from 1 to {LONGEST_NAME} of a to z, 0 to 9 and -, is {name:?}")
            });
            channel.check(&mut inner);
            problems.nest(&format!("channels.{name}"), inner);
        }
        problems
    }

    /// Sends a test message to every channel, at once and whatever waits; what came of each.
    pub async fn send_test(&self) -> Vec<(String, std::result::Result<(), NotifyError>)> {
        let mut results = Vec::with_capacity(self.channels.len());
        for (name, channel) in &self.channels {
            let now = Clock::system().now();
            let sent = channel.send(&Message::test(name, now), now).await;
            results.push((name.clone(), sent));
        }
        results
    }

    /// How long a round may take: the lock is taken for that, so that another node takes over only from a dead one.
    fn longest_round(&self) -> Duration {
        let sending: Duration = self.channels.values().map(Channel::timeout).sum();
        sending + Duration::from_secs(60)
    }
}

/// Names go into `sent_to` and into patterns over it.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(allowed)
}

fn check_timeout(timeout: Duration, problems: &mut Problems) {
    duration::check(timeout, "timeout", problems);
    problems.require(timeout <= LONGEST_TIMEOUT, "timeout", || "must be at most 1m".into());
}

impl Channel {
    pub(crate) fn check(&self, problems: &mut Problems) {
        match self {
            Self::Mail(mail) => mail.check(problems),
            Self::Webhook(webhook) => webhook.check(problems),
        }
    }

    fn timeout(&self) -> Duration {
        match self {
            Self::Mail(mail) => mail.timeout,
            Self::Webhook(webhook) => webhook.timeout,
        }
    }

    /// Where it goes, without secrets.
    pub fn target(&self) -> String {
        match self {
            Self::Mail(mail) => mail.target(),
            Self::Webhook(webhook) => webhook.target(),
        }
    }

    /// Sends a message. `now` is what signatures are made with.
    pub async fn send(&self, message: &Message, now: Timestamp) -> std::result::Result<(), NotifyError> {
        match self {
            Self::Mail(mail) => mail.send(message).await,
            Self::Webhook(webhook) => webhook.send(message, now).await,
        }
    }
}

impl NotifyError {
    fn new(why: impl AsRef<str>) -> Self {
        Self(storable(why.as_ref(), LONGEST_ERROR))
    }
}

/// Sends what waits. The engine has one; it can also be used by itself.
#[derive(Clone, Debug)]
pub struct Notifier {
    store: Store,
    config: NotifyConfig,
}

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Messages that were sent.
    pub sent: u32,
    /// Messages that could not be sent.
    pub failed: u32,
}

/// A channel to be used now.
struct Due<'c> {
    name: &'c str,
    channel: &'c Channel,
    /// How often it failed in a row.
    tries: u32,
}

impl Notifier {
    /// On this store, with these channels.
    pub fn new(store: Store, config: NotifyConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self { store, config })
    }

    /// Sends one message to each channel that may be used and has not got everything; nothing if another holds the lock.
    /// `me` is who takes the lock: different for each process.
    pub async fn run_once(&self, me: &str, now: Timestamp) -> Result<Round> {
        if !self.store.has_news(now).await? {
            return Ok(Round::default());
        }
        self.finish_rest(now).await?;
        if self.due(now).await?.is_empty() && self.store.letters_to_remind(now, 1).await?.is_empty() {
            return Ok(Round::default()); // without a write: this is asked often
        }
        let Some(lock) = self.store.lock(LOCK, me, self.config.longest_round(), now).await? else {
            return Ok(Round::default());
        };
        let round = match self.remind(now).await {
            Ok(()) => self.round(now).await,
            Err(e) => Err(e),
        };
        self.store.unlock(&lock).await?;
        round
    }

    /// What all channels have already, since one that did not was taken out of the settings.
    async fn finish_rest(&self, now: Timestamp) -> Result<()> {
        let channels = self.names();
        self.store.finish_reminders(&channels).await?;
        let finished = self.store.notices_sent_to_all(&channels, MOST_NOTICES).await?;
        if finished.is_empty() { Ok(()) } else { self.store.finish_notices(&finished, now).await }
    }

    fn names(&self) -> Vec<&str> {
        self.config.channels.keys().map(String::as_str).collect()
    }

    /// Writes the reminders that are due. Under the lock.
    async fn remind(&self, now: Timestamp) -> Result<()> {
        let letters = self.store.letters_to_remind(now, MOST_REMINDERS).await?;
        self.store.note_reminded(&letters, self.config.remind_every, now).await.map(|_| ())
    }

    /// The channels that may be used and have not got everything.
    async fn due(&self, now: Timestamp) -> Result<Vec<Due<'_>>> {
        let states = self.store.channel_states().await?;
        let mut due = Vec::new();
        for (name, channel) in &self.config.channels {
            let state = states.iter().find(|state| state.name == *name);
            let rests = state.is_some_and(|state| state.next_at > now);
            if !rests && self.waits_for(name).await? {
                due.push(Due { name, channel, tries: state.map_or(0, |state| state.tries) });
            }
        }
        Ok(due)
    }

    async fn waits_for(&self, name: &str) -> Result<bool> {
        Ok(!self.store.notices_for(name, 1).await?.is_empty() || !self.store.reminders_for(name, 1).await?.is_empty())
    }

    /// Under the lock.
    async fn round(&self, now: Timestamp) -> Result<Round> {
        let mut round = Round::default();
        for due in self.due(now).await? {
            let notices = self.store.notices_for(due.name, MOST_NOTICES).await?;
            let reminders = self.store.reminders_for(due.name, MOST_NOTICES).await?;
            match due.channel.send(&message::digest(&notices, &reminders), now).await {
                Ok(()) => {
                    round.sent += 1;
                    self.sent(&due, &notices, &reminders, now).await?;
                }
                Err(e) => {
                    round.failed += 1;
                    self.failed(&due, &e, now).await?;
                }
            }
        }
        self.store.finish_reminders(&self.names()).await?;
        Ok(round)
    }

    async fn sent(&self, due: &Due<'_>, notices: &[Notice], reminders: &[Reminder], now: Timestamp) -> Result<()> {
        let channel = || due.name.to_owned();
        metrics::counter!("redrive_notices_sent", "channel" => channel()).increment(notices.len() as u64);
        metrics::counter!("redrive_reminders_sent", "channel" => channel()).increment(reminders.len() as u64);
        let (finished, partly) = self.split(due.name, notices);
        let sent = Sent { finished, partly, reminders: reminders.iter().map(|reminder| reminder.task_id).collect() };
        self.store.note_sent(due.name, &sent, now + self.config.digest_interval, now).await
    }

    async fn failed(&self, due: &Due<'_>, error: &NotifyError, now: Timestamp) -> Result<()> {
        metrics::counter!("redrive_notices_failed", "channel" => due.name.to_owned()).increment(1);
        let tries = due.tries.saturating_add(1);
        let next = now + backoff(tries);
        let target = due.channel.target();
        tracing::warn!(channel = due.name, to = target, tries, %next, %error, "people could not be told; trying again");
        self.store.note_not_sent(due.name, &error.to_string(), tries, next, now).await
    }

    /// Those that every channel has now, and the others.
    fn split(&self, now_sent: &str, notices: &[Notice]) -> (Vec<TaskId>, Vec<TaskId>) {
        let has_all = |notice: &&Notice| {
            self.config.channels.keys().all(|name| name == now_sent || notice.sent_to.contains(name))
        };
        let (finished, partly): (Vec<&Notice>, Vec<&Notice>) = notices.iter().partition(has_all);
        let ids = |notices: Vec<&Notice>| notices.iter().map(|notice| notice.task_id).collect();
        (ids(finished), ids(partly))
    }
}

/// How long a channel rests after it has failed so many times in a row.
fn backoff(tries: u32) -> Duration {
    Backoff::exponential(Duration::from_secs(5), 2.0, Duration::from_secs(600)).delay(tries)
}
