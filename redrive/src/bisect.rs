//! Finding the item for which a database refuses a batch: written once for all batches.
//!
//! A part that fails is halved, and the halves are tried by themselves, until the guilty item is alone. Whoever tries decides
//! after each try: the part is done, is [split](Bisect::split), is tried [again](Bisect::again), or is dropped here and put
//! back elsewhere. To stop is to drop the whole.

use std::collections::VecDeque;

/// The parts of a batch that are still to be tried.
#[derive(Debug)]
pub(crate) struct Bisect<T>(VecDeque<Vec<T>>);

impl<T> Bisect<T> {
    /// The whole batch is tried first.
    pub(crate) fn of(batch: Vec<T>) -> Self {
        Self(VecDeque::from([batch]))
    }

    /// The whole batch has failed: its halves are tried. Gives the item of a batch of one.
    pub(crate) fn of_failed(batch: Vec<T>) -> (Self, Option<T>) {
        let mut bisect = Self(VecDeque::new());
        let alone = bisect.split(batch);
        (bisect, alone)
    }

    /// The next part to try: one item or more.
    pub(crate) fn next_part(&mut self) -> Option<Vec<T>> {
        std::iter::from_fn(|| self.0.pop_front()).find(|part| !part.is_empty())
    }

    /// Tries a part again before all others.
    pub(crate) fn again(&mut self, part: Vec<T>) {
        self.0.push_front(part);
    }

    /// Halves a part that has failed; its halves are tried before all others. An item that was alone is guilty and is given
    /// back.
    pub(crate) fn split(&mut self, mut part: Vec<T>) -> Option<T> {
        if part.len() <= 1 {
            return part.pop();
        }
        let other = part.split_off(part.len() / 2);
        self.0.push_front(other);
        self.0.push_front(part);
        None
    }

    /// Halves a part that has failed; all others are tried before its halves. Larger parts go first, for those who have little time.
    pub(crate) fn split_last(&mut self, mut part: Vec<T>) -> Option<T> {
        if part.len() <= 1 {
            return part.pop();
        }
        let other = part.split_off(part.len() / 2);
        self.0.push_back(part);
        self.0.push_back(other);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The parts that are tried if these items are refused, and those that are found.
    fn tried(n: u32, guilty: &[u32], last: bool) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut tried, mut found) = (Vec::new(), Vec::new());
        let mut bisect = Bisect::of((0..n).collect());
        while let Some(part) = bisect.next_part() {
            tried.push(part.clone());
            if part.iter().any(|item| guilty.contains(item)) {
                found.extend(if last { bisect.split_last(part) } else { bisect.split(part) });
            }
        }
        (tried, found)
    }

    #[test]
    fn halves_go_before_all_others_or_after_them() {
        let (first, found) = tried(4, &[1, 2], false);
        assert_eq!(
            (first, found),
            (vec![vec![0, 1, 2, 3], vec![0, 1], vec![0], vec![1], vec![2, 3], vec![2], vec![3]], vec![1, 2])
        );
        let (last, found) = tried(4, &[1, 2], true);
        assert_eq!(
            (last, found),
            (vec![vec![0, 1, 2, 3], vec![0, 1], vec![2, 3], vec![0], vec![1], vec![2], vec![3]], vec![1, 2])
        );
    }

    #[test]
    fn a_part_that_is_tried_again_goes_first() {
        let mut bisect = Bisect::of(vec![1, 2]);
        let part = bisect.next_part().unwrap();
        assert_eq!(bisect.split(part), None);
        let part = bisect.next_part().unwrap();
        bisect.again(part);
        assert_eq!((bisect.next_part(), bisect.next_part(), bisect.next_part()), (Some(vec![1]), Some(vec![2]), None));
    }

    #[test]
    fn a_batch_of_one_that_failed_is_guilty_at_once_and_an_empty_one_has_nothing() {
        let (mut bisect, alone) = Bisect::of_failed(vec![7]);
        assert_eq!((bisect.next_part(), alone), (None, Some(7)));
        let (mut bisect, alone) = Bisect::of_failed(vec![7, 8]);
        assert_eq!((bisect.next_part(), alone), (Some(vec![7]), None));
        assert_eq!(Bisect::<u8>::of(Vec::new()).next_part(), None);
    }

    proptest! {
        /// Each guilty item is found alone, each other one is in exactly one part that went well, and it takes no longer than
        /// halving does.
        #[test]
        fn each_guilty_item_is_found_and_each_other_goes_once(n in 1u32..200, guilty in prop::collection::btree_set(0u32..200, 0..8), last: bool) {
            let guilty: Vec<u32> = guilty.into_iter().filter(|item| *item < n).collect();
            let (tried, mut found) = tried(n, &guilty, last);
            found.sort_unstable();
            prop_assert_eq!(&found, &guilty);
            let mut went: Vec<u32> = tried.iter().filter(|part| !part.iter().any(|item| guilty.contains(item))).flatten().copied().collect();
            went.extend(&guilty);
            went.sort_unstable();
            prop_assert_eq!(went, (0..n).collect::<Vec<_>>());
            prop_assert!(tried.len() <= 1 + guilty.len() * 2 * (n.ilog2() as usize + 1));
        }
    }
}
