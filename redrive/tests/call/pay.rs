//! A payment whose answers are scripted, and what the tests ask of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{
    Backoff, CallError, Context, Engine, EngineConfig, ErrorKind, Jitter, Key, Persist, Policy, Retryable, TaskId,
    Verdict,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::harness::{Db, moment};

/// What the channel answers.
#[derive(Clone, Debug)]
pub enum Answer {
    Code(u16),
    Timeout,
    Declined,
    Panic,
    Hang,
    Say(Word),
}

#[derive(Clone, Copy, Debug)]
pub enum Word {
    Snooze,
    RetryAfter,
    Fatal,
    Cancel,
    Persist,
}

#[derive(Debug, thiserror::Error, ErrorKind)]
pub enum PayError {
    #[error("no answer")]
    #[kind("timeout")]
    Timeout,
    #[error("the card was declined")]
    Declined,
    #[error("{0}")]
    Redrive(#[from] redrive::Error),
}

/// One try, as the payment saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Try {
    pub order: u64,
    pub attempt: u32,
    pub id: TaskId,
    pub key: Option<String>,
    pub stored: bool,
}

/// The state that payments find.
#[derive(Clone)]
pub struct Channel {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    tries: mpsc::UnboundedSender<Try>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pay {
    pub order: u64,
    #[serde(skip)]
    pub persist: Option<Persist>,
    #[serde(skip)]
    pub policy: Option<Policy>,
    #[serde(skip)]
    pub key: Option<String>,
}

pub fn pay(order: u64) -> Pay {
    Pay { order, persist: None, policy: None, key: None }
}

impl Pay {
    pub fn persist(self, persist: Persist) -> Self {
        Self { persist: Some(persist), ..self }
    }

    pub fn policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub code: u16,
}

impl Retryable for Pay {
    const METHOD: &'static str = "pay";
    type Output = Receipt;
    type Error = PayError;

    async fn execute(&self, cx: &Context<'_>) -> Result<Receipt, PayError> {
        let channel = cx.state::<Channel>()?.clone();
        let key = cx.key().map(std::borrow::Cow::into_owned);
        let stored = cx.task().is_some();
        _ = channel.tries.send(Try { order: self.order, attempt: cx.attempt(), id: cx.task_id(), key, stored });
        let answer = channel.answers.lock().unwrap().pop_front().unwrap_or(Answer::Code(200));
        match answer {
            Answer::Code(code) => Ok(Receipt { code }),
            Answer::Timeout => Err(PayError::Timeout),
            Answer::Declined => Err(PayError::Declined),
            Answer::Panic => panic!("oh no"),
            Answer::Hang => std::future::pending().await,
            Answer::Say(word) => {
                match word {
                    Word::Snooze => cx.snooze(Duration::from_millis(20)),
                    Word::RetryAfter => cx.retry_after(Duration::from_secs(3600)),
                    Word::Fatal => cx.fatal(),
                    Word::Cancel => cx.cancel(),
                    Word::Persist => cx.persist(),
                }
                Err(PayError::Timeout)
            }
        }
    }

    fn policy(&self, defaults: Policy) -> Policy {
        self.policy.clone().unwrap_or(Policy { no_retry_for: vec!["Declined".into()], ..quick(defaults) })
    }

    fn persist(&self) -> Option<Persist> {
        self.persist
    }

    fn classify(&self, error: &PayError) -> Verdict {
        Verdict::of(error)
    }

    fn key(&self) -> Key {
        self.key.clone().map_or(Key::FromParams, Key::Given)
    }

    fn result(&self, output: &Receipt) -> Option<serde_json::Value> {
        serde_json::to_value(output).ok()
    }
}

/// Tried again after 5 ms.
pub fn quick(policy: Policy) -> Policy {
    Policy { backoff: Backoff::fixed(Duration::from_millis(5)), jitter: Jitter::None, ..policy }
}

/// Tried again after an hour: it can be looked at.
pub fn slow() -> Policy {
    let backoff = Backoff::fixed(Duration::from_secs(3600));
    Policy { backoff, jitter: Jitter::None, no_retry_for: vec!["Declined".into()], ..Policy::default() }
}

pub struct Shop {
    pub redrive: Engine,
    pub tries: mpsc::UnboundedReceiver<Try>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
}

pub fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(300);
    config.beat_interval = Duration::from_millis(100);
    config.lease = Duration::from_secs(1);
    config.margin = Duration::from_millis(200);
    config.grace = Duration::from_secs(5);
    config
}

impl Shop {
    /// An engine on this database whose payments are answered like this, and with 200 from then on.
    pub async fn open(db: &Db, answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::with(db, answers, |builder| builder).await
    }

    pub async fn with(
        db: &Db,
        answers: impl IntoIterator<Item = Answer>,
        more: impl FnOnce(redrive::Builder) -> redrive::Builder,
    ) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect()));
        let (sender, tries) = mpsc::unbounded_channel();
        let channel = Channel { answers: answers.clone(), tries: sender };
        let builder = Engine::builder(db.store.clone()).config(config()).state(channel).handler::<Pay>();
        Self { redrive: more(builder).start().await.unwrap(), tries, answers }
    }

    pub fn answer(&self, answer: Answer) {
        self.answers.lock().unwrap().push_back(answer);
    }

    pub async fn next_try(&mut self) -> Try {
        self.tries.recv().await.unwrap()
    }

    /// Waits until all outcomes are written, and stops.
    pub async fn close(self) {
        while self.redrive.stats().running > 0 {
            moment().await;
        }
        self.redrive.stop().await;
    }
}

/// The id of a call that was deferred.
pub fn deferred<T: std::fmt::Debug>(called: Result<T, CallError<T, PayError>>) -> TaskId {
    match called {
        Err(CallError::Deferred { task_id, existed: false, cause: Some(_) }) => task_id,
        other => panic!("expected to be deferred, was {other:?}"),
    }
}
