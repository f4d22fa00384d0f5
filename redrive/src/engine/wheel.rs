//! Tasks that are due soon, each in the slot of its millisecond.
//!
//! An optimisation: it lets a task run at its time instead of at the next scan. Nothing depends on it; the scan of what is
//! due finds everything. It is one ring of slots, so putting a task in and taking it out cost the same however many there
//! are; what lies beyond the ring, or finds it full, is left to a later scan.

use crate::clock::Timestamp;
use crate::store::Due;

/// How far ahead it reaches, in milliseconds: a power of two.
const SLOTS: usize = 1 << 16;

/// Slots that are no larger keep their memory for the next turn.
const KEPT: usize = 16;

/// Leaves each task in once, as it was seen last.
fn sort_out(slot: &mut Vec<Due>) {
    slot.sort_unstable_by_key(|due| (due.id, std::cmp::Reverse(due.version)));
    slot.dedup_by_key(|due| due.id);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Vec<Vec<Due>>,
    /// Everything due before this has been taken out.
    next: i64,
    len: usize,
    most: usize,
}

impl Wheel {
    /// A wheel that stands at `now` and holds at most `most` tasks.
    pub(crate) fn new(now: Timestamp, most: usize) -> Self {
        Self { slots: vec![Vec::new(); SLOTS], next: now.as_millis(), len: 0, most }
    }

    /// Puts a task in. `false`: it is due already, or too late, or there is no room.
    pub(crate) fn insert(&mut self, task: Due) -> bool {
        let ahead = task.due.as_millis() - self.next;
        if !(0..SLOTS as i64).contains(&ahead) || self.len >= self.most {
            return false;
        }
        let Some(slot) = self.slots.get_mut(Self::slot(task.due.as_millis())) else { return false };
        if slot.len() == slot.capacity() {
            // Scans bring some tasks again. Looked at only before it would grow, so it costs next to nothing.
            let before = slot.len();
            sort_out(slot);
            self.len -= before - slot.len();
            if slot.len() * 2 > before {
                slot.reserve(before);
            }
        }
        slot.push(task);
        self.len += 1;
        true
    }

    /// Whether its slot was emptied already: it is due, or will be in a moment.
    pub(crate) fn has_passed(&self, due: Timestamp) -> bool {
        due.as_millis() < self.next
    }

    /// Takes out all that is due.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<Due> {
        let mut due = Vec::new();
        let until = now.as_millis().min(self.next + SLOTS as i64 - 1);
        while self.next <= until {
            if let Some(slot) = self.slots.get_mut(Self::slot(self.next)) {
                due.append(slot);
                if slot.capacity() > KEPT {
                    *slot = Vec::new();
                }
            }
            self.next += 1;
        }
        self.next = self.next.max(now.as_millis() + 1);
        self.len -= due.len();
        due
    }

    /// When the next task is due: looked for at most `within` milliseconds ahead.
    pub(crate) fn next_due(&self, within: usize) -> Option<Timestamp> {
        let ahead = (0..within.min(SLOTS) as i64).map(|ms| self.next + ms);
        let occupied = |at: &i64| self.slots.get(Self::slot(*at)).is_some_and(|slot| !slot.is_empty());
        if self.len == 0 { None } else { ahead.into_iter().find(occupied).map(Timestamp::from_millis) }
    }

    /// How far ahead it takes tasks.
    pub(crate) fn horizon(&self) -> Timestamp {
        Timestamp::from_millis(self.next + SLOTS as i64 - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has_room(&self) -> bool {
        self.len < self.most
    }

    /// Empties it: another node has these tasks now.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().for_each(Vec::clear);
        self.len = 0;
    }

    fn slot(ms: i64) -> usize {
        (ms & (SLOTS as i64 - 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::TaskId;
    use crate::task::Lane;

    const NOW: i64 = 1_800_000_000_000;

    fn due(id: i64, at: i64) -> Due {
        Due {
            id: TaskId::from_i64(id),
            version: 0,
            due: Timestamp::from_millis(at),
            priority: 0,
            lane: Lane(1),
            business: 0,
        }
    }

    #[test]
    fn a_task_takes_little_room() {
        assert!(size_of::<Due>() <= 32, "{}", size_of::<Due>());
    }

    #[test]
    fn what_is_due_too_late_or_finds_no_room_is_refused() {
        let mut wheel = Wheel::new(Timestamp::from_millis(NOW), 1);
        assert!(!wheel.insert(due(1, NOW - 1)));
        assert!(!wheel.insert(due(1, NOW + SLOTS as i64)));
        assert!(wheel.insert(due(1, NOW + 5)));
        assert!(!wheel.insert(due(2, NOW + 5)), "full");
        assert_eq!(wheel.next_due(100), Some(Timestamp::from_millis(NOW + 5)));
    }

    #[test]
    fn a_task_that_is_put_in_again_and_again_takes_no_more_room() {
        let mut wheel = Wheel::new(Timestamp::from_millis(NOW), usize::MAX);
        (0..10_000).for_each(|n| assert!(wheel.insert(due(n % 10, NOW + 5))));
        assert!(wheel.len() <= 40, "{}", wheel.len());
        let mut out = wheel.take_due(Timestamp::from_millis(NOW + 5));
        sort_out(&mut out);
        assert_eq!((out.len(), wheel.len()), (10, 0));
    }

    proptest! {
        /// Never early, never lost, whatever the steps of time.
        #[test]
        fn each_task_comes_out_once_and_never_early(
            delays in prop::collection::vec(0i64..70_000, 1..200),
            steps in prop::collection::vec(1i64..90_000, 1..20),
        ) {
            let mut wheel = Wheel::new(Timestamp::from_millis(NOW), usize::MAX);
            let mut waiting: Vec<Due> = delays.iter().enumerate().map(|(i, d)| due(i as i64, NOW + d)).collect();
            waiting.retain(|task| wheel.insert(*task));
            let mut now = NOW;
            for step in steps {
                now += step;
                let out = wheel.take_due(Timestamp::from_millis(now));
                for task in &out {
                    prop_assert!(task.due.as_millis() <= now);
                }
                let late = waiting.iter().filter(|t| t.due.as_millis() <= now).count();
                prop_assert_eq!(late, out.len());
                waiting.retain(|t| t.due.as_millis() > now);
            }
            prop_assert_eq!(wheel.len(), waiting.len());
        }
    }
}
