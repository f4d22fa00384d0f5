//! Tasks that are due and wait for a slot: by lane, and within a lane by priority.
//!
//! Lanes take turns, so that a million due tasks of one method do not delay the one of another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};

use crate::id::TaskId;
use crate::store::Due;
use crate::task::Lane;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    lanes: BTreeMap<Lane, BinaryHeap<Item>>,
    /// Which lane had the last turn.
    last: Option<Lane>,
    known: HashSet<TaskId>,
}

/// Ordered by who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item(Due);

impl Item {
    fn rank(&self) -> impl Ord + use<> {
        (self.0.priority, Reverse(self.0.due), Reverse(self.0.id))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ready {
    /// Puts a task in, once.
    pub(crate) fn push(&mut self, due: Due) {
        if self.known.insert(due.id) {
            self.lanes.entry(due.lane).or_default().push(Item(due));
        }
    }

    /// Takes up to `most` tasks, lane by lane in turns; `room` says how many more a lane may have.
    pub(crate) fn take(&mut self, most: usize, room: impl Fn(Lane) -> usize) -> Vec<Due> {
        let mut taken = Vec::new();
        let mut rooms: BTreeMap<Lane, usize> = self.lanes.keys().map(|lane| (*lane, room(*lane))).collect();
        while taken.len() < most {
            let before = taken.len();
            for lane in self.turns() {
                // A large share at once while only one lane has something: turns cost time.
                let share = ((most - taken.len()) / rooms.len().max(1)).max(1);
                let room = rooms.get_mut(&lane);
                let (Some(queue), Some(room)) = (self.lanes.get_mut(&lane), room) else { continue };
                for _ in 0..share.min(*room).min(most - taken.len()) {
                    let Some(Item(due)) = queue.pop() else { break };
                    taken.push(due);
                    *room -= 1;
                    self.last = Some(lane);
                }
            }
            if taken.len() == before {
                break;
            }
        }
        self.lanes.retain(|_, queue| !queue.is_empty());
        taken.iter().for_each(|due| _ = self.known.remove(&due.id));
        taken
    }

    /// The lanes, beginning after the one that had the last turn.
    fn turns(&self) -> Vec<Lane> {
        let (mut before, after): (Vec<Lane>, Vec<Lane>) =
            self.lanes.keys().partition(|lane| self.last.is_some_and(|last| **lane <= last));
        let mut turns = after;
        turns.append(&mut before);
        turns
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn lane_len(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, BinaryHeap::len)
    }

    pub(crate) fn clear(&mut self) {
        self.lanes.clear();
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn due(id: i64, lane: i32, at: i64, priority: i16) -> Due {
        Due { id: TaskId::from_i64(id), version: 0, due: Timestamp::from_millis(at), priority, lane: Lane(lane) }
    }

    fn ids(taken: &[Due]) -> Vec<i64> {
        taken.iter().map(|d| d.id.as_i64()).collect()
    }

    #[test]
    fn a_full_lane_does_not_delay_another() {
        let mut ready = Ready::default();
        (0..1_000).for_each(|id| ready.push(due(id, 1, 5, 0)));
        ready.push(due(5_000, 2, 9, 0));
        assert!(ids(&ready.take(4, |_| 100)).contains(&5_000));
    }

    #[test]
    fn priority_first_then_the_earliest() {
        let mut ready = Ready::default();
        [due(1, 1, 9, 0), due(2, 1, 5, 0), due(3, 1, 9, 7)].into_iter().for_each(|d| ready.push(d));
        assert_eq!(ids(&ready.take(9, |_| 9)), [3, 2, 1]);
        assert_eq!(ready.len(), 0);
    }

    #[test]
    fn a_lane_gets_no_more_than_its_room() {
        let mut ready = Ready::default();
        (0..10).for_each(|id| ready.push(due(id, (id % 2) as i32, 5, 0)));
        let taken = ready.take(10, |lane| if lane == Lane(0) { 2 } else { 0 });
        assert_eq!((taken.len(), ready.len()), (2, 8));
        assert!(taken.iter().all(|d| d.lane == Lane(0)));
    }

    #[test]
    fn a_task_is_in_it_once() {
        let mut ready = Ready::default();
        ready.push(due(1, 1, 5, 0));
        ready.push(due(1, 1, 5, 0));
        assert_eq!(ready.take(9, |_| 9).len(), 1);
        ready.push(due(1, 1, 5, 0));
        assert_eq!(ready.take(9, |_| 9).len(), 1, "and again when it was taken");
    }
}
