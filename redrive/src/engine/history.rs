//! Counting what happens here, minute by minute, for curves.
//!
//! *State.* [`Tally`] counts since the start: one addition for each batch, whether anybody looks or not. [`Recorder`] knows which
//! minute it is, and what was counted when that began.
//!
//! *Invariants.* What is written is all that was counted in the minute so far, so writing it twice changes nothing. Nothing is
//! written while nothing happens.
//!
//! *Failure.* What was counted up to 15 s before the end of a minute is in the next one; what was counted in the last 15 s of a
//! process is lost. These are curves for people; counters for machines are in [`signals`](super::signals).
//!
//! Tasks that are redriven, or written by [`Store`](crate::Store) without an engine, are not counted as enqueued; what people fail
//! by hand is not counted as dead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::store::Moment;

use super::Shared;
use super::signals::Signal;

const MINUTE: i64 = 60_000;

/// What has happened since the start.
#[derive(Debug, Default)]
pub(super) struct Tally([AtomicU64; 4]);

/// Enqueued, done, failed, dead.
type Counts = [u64; 4];

fn place(signal: Signal) -> Option<usize> {
    match signal {
        Signal::Enqueued => Some(0),
        Signal::Done => Some(1),
        Signal::Failed => Some(2),
        Signal::Dead => Some(3),
        _ => None,
    }
}

impl Tally {
    /// Adds what a batch did.
    pub(super) fn add(&self, batch: impl Iterator<Item = Signal>) {
        let mut counts = Counts::default();
        for place in batch.filter_map(place) {
            counts.get_mut(place).into_iter().for_each(|n| *n += 1);
        }
        for (total, n) in self.0.iter().zip(counts).filter(|(_, n)| *n > 0) {
            total.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> Counts {
        [0, 1, 2, 3].map(|i: usize| self.0.get(i).map_or(0, |n| n.load(Ordering::Relaxed)))
    }
}

/// What the node that does the upkeep sees of the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) waiting: u64,
    pub(super) letters: u64,
    pub(super) lag: Duration,
}

/// What of it is written down.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    minute: Timestamp,
    /// What was counted when the minute began.
    base: Counts,
    written: Counts,
    seen: Seen,
    swept_at: Timestamp,
}

impl Recorder {
    /// What is to be written now, oldest first.
    fn due(&mut self, counts: Counts, seen: Option<Seen>, now: Timestamp) -> Vec<Moment> {
        let minute = Timestamp::from_millis(now.as_millis() - now.as_millis() % MINUTE);
        let mut due = Vec::new();
        if minute != self.minute {
            due.extend(self.fresh(counts, None)); // what came after it was last written
            // What was counted before the first look is of the first minute.
            let base = if self.minute == Timestamp::EPOCH { Counts::default() } else { counts };
            (self.minute, self.base, self.written) = (minute, base, Counts::default());
        }
        due.extend(self.fresh(counts, seen));
        due
    }

    /// The minute, if there is more in it than was written.
    fn fresh(&mut self, counts: Counts, seen: Option<Seen>) -> Option<Moment> {
        let mut so_far = counts;
        so_far.iter_mut().zip(self.base).for_each(|(n, base)| *n = n.saturating_sub(base));
        let is_news = seen.is_some_and(|seen| seen != self.seen || seen != Seen::default());
        if (so_far == self.written && !is_news) || self.minute == Timestamp::EPOCH {
            return None;
        }
        self.written = so_far;
        self.seen = seen.unwrap_or(self.seen);
        let [enqueued, done, failed, dead] = so_far;
        let mut moment = Moment::at(self.minute);
        (moment.enqueued, moment.done, moment.failed, moment.dead) = (enqueued, done, failed, dead);
        if let Some(seen) = seen {
            (moment.waiting, moment.letters, moment.lag) = (Some(seen.waiting), Some(seen.letters), Some(seen.lag));
        }
        Some(moment)
    }
}

impl Shared {
    /// Writes down what happened since the last time.
    pub(super) async fn record(&self, recorder: &mut Recorder, seen: Option<Seen>) -> Result<()> {
        let now = self.clock.now();
        for minute in recorder.due(self.signals.tally.counts(), seen, now) {
            self.store.note_minute(self.me.number(), &minute).await?;
        }
        if seen.is_some() && now.since(recorder.swept_at) >= Duration::from_secs(3600) {
            recorder.swept_at = now;
            self.store.sweep_history(now).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000) + Duration::from_secs(seconds)
    }

    fn enqueued(moments: &[Moment]) -> Vec<(Timestamp, u64)> {
        moments.iter().map(|m| (m.at, m.enqueued)).collect()
    }

    #[test]
    fn a_minute_has_all_that_was_counted_in_it_and_silence_is_not_written() {
        let (tally, mut recorder) = (Tally::default(), Recorder::default());
        assert_eq!(recorder.due(tally.counts(), None, at(1)), []);
        tally.add([Signal::Enqueued, Signal::Enqueued, Signal::Claimed].into_iter());
        assert_eq!(enqueued(&recorder.due(tally.counts(), None, at(15))), [(at(0), 2)]);
        assert_eq!(recorder.due(tally.counts(), None, at(30)), [], "nothing new");
        tally.add([Signal::Enqueued].into_iter());
        assert_eq!(enqueued(&recorder.due(tally.counts(), None, at(75))), [(at(0), 3)], "the minute before, whole");
        tally.add([Signal::Enqueued].into_iter());
        assert_eq!(enqueued(&recorder.due(tally.counts(), None, at(90))), [(at(60), 1)]);
    }

    #[test]
    fn what_was_counted_before_the_first_look_is_not_lost() {
        let (tally, mut recorder) = (Tally::default(), Recorder::default());
        tally.add([Signal::Enqueued, Signal::Enqueued].into_iter());
        assert_eq!(enqueued(&recorder.due(tally.counts(), None, at(15))), [(at(0), 2)]);
    }

    #[test]
    fn what_waits_is_written_while_it_waits_and_once_when_it_has_gone() {
        let mut recorder = Recorder::default();
        let waits = |waiting| Some(Seen { waiting, ..Seen::default() });
        let mut due =
            |seen, s| recorder.due(Counts::default(), seen, at(s)).iter().map(|m| m.waiting).collect::<Vec<_>>();
        assert_eq!(due(waits(0), 1), []);
        assert_eq!(due(waits(5), 15), [Some(5)]);
        assert_eq!(due(waits(5), 30), [Some(5)]);
        assert_eq!((due(waits(0), 45), due(waits(0), 61)), (vec![Some(0)], vec![]));
    }
}
