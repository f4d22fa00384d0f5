//! What is asked of sagas and not written yet.
//!
//! *State.* A queue of what is to be told to sagas; and sagas that were set aside, each with a queue of its own.
//!
//! *Invariants.* What is asked of one saga is in one queue, in the order in which it was asked. What is closed takes nothing more, and whoever asks is told.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};

use crate::engine::lock;
use crate::error::{Error, Result};
use crate::saga::State;

use super::memory::Memory;
use super::tell::Tell;

/// Most sagas and bytes of a flush.
const MOST_SAGAS: usize = 500;
const MOST_BYTES: usize = 4 << 20;
/// See the module, and `journals`, which writes what is in here.
#[derive(Debug, Default)]
pub(super) struct Journals {
    queue: Mutex<Queue>,
    pub(super) more: Notify,
    pub(super) memory: Memory,
}

#[derive(Debug, Default)]
struct Queue {
    asked: VecDeque<Asked>,
    /// Of sagas that wait for somebody else's transaction.
    aside: HashMap<String, VecDeque<Asked>>,
    /// The engine has stopped: nothing is taken any more.
    closed: bool,
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) tell: Tell,
    /// Roughly what it takes.
    pub(super) bytes: usize,
    /// Whether the saga must be read first: what we had of it was out of date.
    pub(super) reread: bool,
    /// How often somebody else was faster.
    pub(super) lost: u32,
    pub(super) answer: oneshot::Sender<Result<Answer>>,
}

/// What came of telling a saga something.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) state: Arc<State>,
    /// Whether it was new.
    pub(super) is_new: bool,
}

impl Journals {
    /// Tells a saga something; when this returns it is durable.
    pub(super) async fn tell(&self, id: &str, tell: Tell) -> Result<Answer> {
        let (answer, answered) = oneshot::channel();
        self.push(Asked::new(id.to_owned(), tell, answer));
        answered.await.unwrap_or_else(|_| Err(stopped(id)))
    }

    /// The same without waiting for it.
    pub(super) fn look(&self, id: String) {
        let (answer, _) = oneshot::channel();
        self.push(Asked::new(id, Tell::Look, answer));
    }

    /// What comes when the engine has stopped is dropped, which its asker notices.
    fn push(&self, asked: Asked) {
        let mut queue = lock(&self.queue);
        if !queue.closed && !queue.is_looked_at(&asked) {
            queue.of(&asked.id).push_back(asked);
            self.more.notify_one();
        }
    }

    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.asked.clear();
        queue.aside.clear();
    }

    pub(super) fn take(&self) -> Vec<Asked> {
        take_some(&mut lock(&self.queue).asked)
    }

    /// Ahead of all others: what was asked first is written first.
    pub(super) fn put_back(&self, asked: Vec<Asked>) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            asked.into_iter().rev().for_each(|asked| queue.of(&asked.id).push_front(asked));
            self.more.notify_one();
        }
    }

    /// From now on what is asked of this saga waits by itself; so does what is in the queue.
    pub(super) fn set_aside(&self, id: &str) {
        let mut queue = lock(&self.queue);
        let (of_it, others) = std::mem::take(&mut queue.asked).into_iter().partition(|asked| asked.id == id);
        queue.asked = others;
        queue.aside.insert(id.to_owned(), of_it);
    }

    /// It is one of all again.
    pub(super) fn bring_back(&self, id: &str) {
        let mut queue = lock(&self.queue);
        if let Some(of_it) = queue.aside.remove(id) {
            queue.asked.extend(of_it);
            self.more.notify_one();
        }
    }

    /// What is asked of a saga that was set aside. `None`: nothing any more, and it is one of all again.
    pub(super) fn take_aside(&self, id: &str) -> Option<Vec<Asked>> {
        let mut queue = lock(&self.queue);
        let taken = take_some(queue.aside.get_mut(id)?);
        if taken.is_empty() {
            queue.aside.remove(id);
            return None;
        }
        Some(taken)
    }
}

impl Queue {
    /// The queue of a saga.
    fn of(&mut self, id: &str) -> &mut VecDeque<Asked> {
        self.aside.get_mut(id).unwrap_or(&mut self.asked)
    }

    /// Whether this is a look at a saga that was set aside and will be looked at anyway: however long somebody holds it, one is enough.
    fn is_looked_at(&self, asked: &Asked) -> bool {
        let is_look = |asked: &Asked| matches!(asked.tell, Tell::Look);
        is_look(asked) && self.aside.get(&asked.id).is_some_and(|queue| queue.iter().any(is_look))
    }
}

impl Asked {
    fn new(id: String, tell: Tell, answer: oneshot::Sender<Result<Answer>>) -> Self {
        Self { id, bytes: tell.bytes() + 500, tell, reread: false, lost: 0, answer }
    }

    /// Whether it is the word of an attempt that is over: it ran out of time, or its node may not work any more. Another attempt may be
    /// under way by now.
    pub(super) fn is_moot(&self) -> bool {
        self.tell.is_of_an_attempt() && self.answer.is_closed()
    }
}

/// The first of a queue, within the caps of a flush.
fn take_some(queue: &mut VecDeque<Asked>) -> Vec<Asked> {
    let mut bytes = 0;
    let fits = |asked: &&Asked| {
        bytes += asked.bytes;
        bytes <= MOST_BYTES
    };
    let n = queue.iter().take(MOST_SAGAS).take_while(fits).count().max(1).min(queue.len());
    queue.drain(..n).collect()
}

fn stopped(id: &str) -> Error {
    Error::Unavailable {
        doing: "write the journal of",
        id: id.into(),
        why: "this engine has stopped, or was cut off at it; whether it was written is not known".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::saga::{Event, Op, Work};

    use super::*;

    fn asked(bytes: usize) -> Asked {
        let work = Work { step: Some("a".into()), op: Op::Run, round: 1 };
        let output = json!("x".repeat(bytes));
        Asked::new("t".into(), Tell::Event(Event::Done { work, output, by: None }), oneshot::channel().0)
    }

    #[test]
    fn a_flush_takes_so_many_bytes_and_always_one() {
        let mut queue: VecDeque<Asked> = [1, 1, MOST_BYTES / 2, MOST_BYTES / 2, 2 * MOST_BYTES, 1].map(asked).into();
        let mut taken = || take_some(&mut queue).len();
        assert_eq!([taken(), taken(), taken(), taken(), taken()], [3, 1, 1, 1, 0]);
    }

    #[test]
    fn what_is_asked_of_a_saga_that_was_set_aside_waits_by_itself_in_its_order() {
        let journals = Journals::default();
        let ask = |id: &str| Asked { id: id.into(), ..asked(1) };
        ["a", "b", "a"].into_iter().for_each(|id| journals.push(ask(id)));
        let ids = |asked: &[Asked]| asked.iter().map(|asked| asked.id.clone()).collect::<Vec<_>>();
        journals.set_aside("a");
        journals.put_back(vec![Asked { reread: true, ..ask("a") }]);
        journals.push(ask("a"));
        assert_eq!(ids(&journals.take()), ["b"]);
        let aside = journals.take_aside("a").unwrap();
        assert!(aside.len() == 4 && aside.first().is_some_and(|asked| asked.reread), "{aside:?}");
        (0..3).for_each(|_| journals.look("a".into()));
        assert_eq!(journals.take_aside("a").unwrap().len(), 1, "one look is enough");
        assert!(journals.take_aside("a").is_none());
        journals.push(ask("a"));
        assert_eq!(ids(&journals.take()), ["a"], "one of all again");
    }
}
