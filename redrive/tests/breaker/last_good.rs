//! The last good value.

use std::sync::Arc;

use redrive::resilience::{BreakerError, LastGood, Rejected, Served};

use super::*;

type Answer<V> = Result<Served<V>, BreakerError<&'static str>>;

/// A rejection, as a breaker gives it.
fn rejection() -> Rejected {
    let (breaker, _) = breaker(|b| b);
    breaker.force_open();
    rejected(&breaker)
}

#[tokio::test]
async fn a_value_is_given_while_calls_are_rejected_and_not_when_they_fail() {
    let clock = Clock::manual(START);
    let plain = LastGood::new().clock(clock.clone());
    let answer: Answer<i32> = plain.call(1, async { Ok(10) }).await;
    assert_eq!(answer, Ok(Served::Fresh(10)));
    clock.advance(secs(7));
    assert_eq!(
        plain.call(1, async { Err(rejection().into()) }).await as Answer<i32>,
        Ok(Served::Stale { value: 10, age: secs(7) })
    );
    assert_eq!(plain.call(1, async { Err(BreakerError::Failed("no")) }).await, Err(BreakerError::Failed("no")));
    let generous = plain.clone().after_failures();
    let served = generous.call(1, async { Err(BreakerError::Failed("no")) }).await.unwrap();
    assert_eq!((served.is_stale(), served.age(), served.into_inner()), (true, secs(7), 10));
    assert_eq!(generous.call(2, async { Err(BreakerError::Failed("no")) }).await, Err(BreakerError::Failed("no")));
}

#[tokio::test]
async fn an_old_value_is_none() {
    let clock = Clock::manual(START);
    let values = LastGood::new().clock(clock.clone()).max_age(secs(60));
    values.keep("k", 1);
    clock.advance(secs(60));
    assert!(values.get(&"k").is_some());
    clock.advance(ms(1));
    let answer: Answer<i32> = values.call("k", async { Err(rejection().into()) }).await;
    assert!(matches!(answer, Err(BreakerError::Rejected(_))));
}

#[test]
fn beyond_its_capacity_the_longest_ago_good_one_goes() {
    let values = LastGood::new().capacity(3).clock(Clock::manual(START));
    for key in [1, 2, 3, 1, 4, 5] {
        values.keep(key, key * 10); // the second 1 makes it younger than 2 and 3
    }
    let kept: Vec<_> = (1..=5).filter(|key| values.get(key).is_some()).collect();
    assert_eq!(kept, [1, 4, 5]);
}

#[test]
fn what_is_too_old_to_be_given_out_is_let_go() {
    let clock = Clock::manual(START);
    let values = LastGood::new().clock(clock.clone()).max_age(secs(60));
    let (old, young) = (Arc::new(1), Arc::new(2));
    values.keep("old", old.clone());
    values.keep("renewed", old.clone());
    clock.advance(secs(60));
    values.keep("renewed", young.clone());
    assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (2, 2), "an old one may still be given out");
    clock.advance(ms(1));
    values.keep("another", Arc::new(3));
    assert_eq!((Arc::strong_count(&old), Arc::strong_count(&young)), (1, 2));
}
