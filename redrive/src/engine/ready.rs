//! Tasks that are due and wait for a slot: by lane, and within a lane by priority.
//!
//! Lanes take turns, so that a million due tasks of one method do not delay the one of another. Tasks whose business id has
//! enough running are parked until one of those ends, so that they do not delay another id's either.
//!
//! A task is in it once, as it was seen last: a scan may bring a row as it was before the attempt that has just ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use crate::id::IdMap;
use crate::store::Due;
use crate::task::Lane;

use super::limits::{Reserved, Slot};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    lanes: BTreeMap<Lane, BinaryHeap<Item>>,
    /// By lane and business id.
    parked: HashMap<(Lane, u32), BinaryHeap<Item>>,
    /// Which lane had the last turn.
    last: Option<Lane>,
    /// The version at which a task is in; what has come with an older one is passed over.
    known: IdMap<i32>,
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

/// The first of these that is in at its version.
fn pop(queue: &mut BinaryHeap<Item>, known: &IdMap<i32>) -> Option<Item> {
    std::iter::from_fn(|| queue.pop()).find(|Item(due)| known.get(&due.id) == Some(&due.version))
}

impl Ready {
    /// Puts a task in. `false`: it is in already, at this version or a later one.
    pub(crate) fn push(&mut self, due: Due) -> bool {
        let new = self.known.get(&due.id).is_none_or(|version| *version < due.version);
        if new {
            self.known.insert(due.id, due.version);
            self.lanes.entry(due.lane).or_default().push(Item(due));
        }
        new
    }

    /// Takes up to `most` tasks, lane by lane in turns, those for which `reserve` has a slot.
    pub(crate) fn take(&mut self, most: usize, mut reserve: impl FnMut(&Due) -> Reserved) -> Vec<Due> {
        let mut taken = Vec::new();
        let mut open = self.turns();
        while taken.len() < most && !open.is_empty() {
            // A large share at once: turns cost time.
            let share = ((most - taken.len()) / open.len()).max(1);
            open.retain(|lane| {
                let until = (taken.len() + share).min(most);
                self.take_of(*lane, until, &mut reserve, &mut taken)
            });
        }
        self.lanes.retain(|_, queue| !queue.is_empty());
        taken.iter().for_each(|due| _ = self.known.remove(&due.id));
        taken
    }

    /// Takes of one lane until there are so many; `false` if it has no more that may run.
    fn take_of(
        &mut self,
        lane: Lane,
        until: usize,
        reserve: &mut impl FnMut(&Due) -> Reserved,
        taken: &mut Vec<Due>,
    ) -> bool {
        let Some(queue) = self.lanes.get_mut(&lane) else { return false };
        while taken.len() < until {
            let Some(Item(due)) = pop(queue, &self.known) else { return false };
            match reserve(&due) {
                Reserved::Yes => taken.push(due),
                Reserved::NotThisBusiness => self.parked.entry((lane, due.business)).or_default().push(Item(due)),
                Reserved::NotThisLane => {
                    queue.push(Item(due));
                    return false;
                }
            }
            self.last = Some(lane);
        }
        true
    }

    /// A slot of this business id is free: the first of its tasks that are parked may try again.
    pub(crate) fn unpark(&mut self, slot: Slot) {
        let Some(parked) = self.parked.get_mut(&(slot.lane, slot.business)) else { return };
        if let Some(first) = pop(parked, &self.known) {
            self.lanes.entry(slot.lane).or_default().push(first);
        }
        if parked.is_empty() {
            self.parked.remove(&(slot.lane, slot.business));
        }
    }

    /// All that are parked may try again.
    pub(crate) fn unpark_all(&mut self) {
        for ((lane, _), parked) in self.parked.drain() {
            self.lanes.entry(lane).or_default().extend(parked);
        }
    }

    /// The business ids of a lane that have at least so many tasks parked: a task of each.
    pub(crate) fn crowds(&self, at_least: usize) -> Vec<Due> {
        let crowds = self.parked.values().filter(|parked| parked.len() >= at_least);
        crowds.filter_map(|parked| parked.peek().map(|item| item.0)).collect()
    }

    /// The lanes, beginning after the one that had the last turn.
    fn turns(&self) -> Vec<Lane> {
        let (mut before, after): (Vec<Lane>, Vec<Lane>) =
            self.lanes.keys().partition(|lane| self.last.is_some_and(|last| **lane <= last));
        let mut turns = after;
        turns.append(&mut before);
        turns
    }

    /// Without those that are parked.
    pub(crate) fn len(&self) -> usize {
        self.lanes.values().map(BinaryHeap::len).sum()
    }

    /// How many there are in all, those that are parked too.
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn lane_len(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, BinaryHeap::len)
    }

    /// The lanes that have something.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.lanes.keys().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.lanes.clear();
        self.parked.clear();
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::id::TaskId;

    fn due(id: i64, lane: i32, at: i64, priority: i16) -> Due {
        Due {
            id: TaskId::from_i64(id),
            version: 0,
            due: Timestamp::from_millis(at),
            priority,
            lane: Lane(lane),
            business: 0,
        }
    }

    fn ids(taken: &[Due]) -> Vec<i64> {
        taken.iter().map(|d| d.id.as_i64()).collect()
    }

    #[test]
    fn a_full_lane_does_not_delay_another() {
        let mut ready = Ready::default();
        (0..1_000).for_each(|id| _ = ready.push(due(id, 1, 5, 0)));
        ready.push(due(5_000, 2, 9, 0));
        assert!(ids(&ready.take(4, |_| Reserved::Yes)).contains(&5_000));
    }

    #[test]
    fn priority_first_then_the_earliest() {
        let mut ready = Ready::default();
        [due(1, 1, 9, 0), due(2, 1, 5, 0), due(3, 1, 9, 7)].into_iter().for_each(|d| _ = ready.push(d));
        assert_eq!(ids(&ready.take(9, |_| Reserved::Yes)), [3, 2, 1]);
        assert_eq!(ready.len(), 0);
    }

    #[test]
    fn a_lane_gets_no_more_than_its_room() {
        let mut ready = Ready::default();
        (0..10).for_each(|id| _ = ready.push(due(id, (id % 2) as i32, 5, 0)));
        let mut room = 2;
        let taken = ready.take(10, |due| {
            let fits = due.lane == Lane(0) && room > 0;
            room -= usize::from(fits);
            if fits { Reserved::Yes } else { Reserved::NotThisLane }
        });
        assert_eq!((taken.len(), ready.len()), (2, 8));
        assert!(taken.iter().all(|d| d.lane == Lane(0)));
    }

    #[test]
    fn tasks_of_a_crowded_business_id_are_parked_and_come_back() {
        let mut ready = Ready::default();
        let of = |id, business| Due { business, ..due(id, 1, id, 0) };
        [of(1, 7), of(2, 7), of(3, 8)].into_iter().for_each(|d| _ = ready.push(d));
        let only_8 = |d: &Due| if d.business == 8 { Reserved::Yes } else { Reserved::NotThisBusiness };
        assert_eq!(ids(&ready.take(9, only_8)), [3]);
        assert_eq!((ready.len(), ready.crowds(2).len(), ready.crowds(3).len()), (0, 1, 0));
        ready.push(of(1, 7));
        assert_eq!(ready.len(), 0, "known already");
        ready.unpark(Slot { lane: Lane(1), business: 7 });
        assert_eq!(ids(&ready.take(9, |_| Reserved::Yes)), [1], "one slot, one task, the earliest");
        ready.unpark_all();
        assert_eq!(ids(&ready.take(9, |_| Reserved::Yes)), [2]);
    }

    #[test]
    fn a_task_is_in_it_once() {
        let mut ready = Ready::default();
        assert!(ready.push(due(1, 1, 5, 0)));
        assert!(!ready.push(due(1, 1, 5, 0)));
        assert_eq!(ready.take(9, |_| Reserved::Yes).len(), 1);
        ready.push(due(1, 1, 5, 0));
        assert_eq!(ready.take(9, |_| Reserved::Yes).len(), 1, "and again when it was taken");
    }

    #[test]
    fn a_task_is_in_it_as_it_was_seen_last() {
        let at = |version| Due { version, business: 7, ..due(1, 1, 5, 0) };
        let versions =
            |ready: &mut Ready| ready.take(9, |_| Reserved::Yes).iter().map(|d| d.version).collect::<Vec<_>>();
        let mut ready = Ready::default();
        assert!(ready.push(at(2)) && ready.push(at(4)) && !ready.push(at(3)));
        assert_eq!((versions(&mut ready), ready.len(), ready.known()), (vec![4], 0, 0));

        ready.push(at(6));
        assert_eq!(ids(&ready.take(9, |_| Reserved::NotThisBusiness)), [0; 0]);
        ready.push(at(8));
        assert_eq!(ids(&ready.take(9, |_| Reserved::NotThisBusiness)), [0; 0]);
        ready.unpark(Slot { lane: Lane(1), business: 7 });
        assert_eq!(versions(&mut ready), [8], "what is parked, too");
    }
}
