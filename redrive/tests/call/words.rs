//! What a call may say about how to go on.

use redrive::{CallError, Persist, Status};

use crate::harness::{Db, moment, stores};
use crate::pay::{Answer, Shop, Word, deferred, pay, quick, slow};

stores!(
    a_first_try_that_snoozes_is_deferred_without_an_attempt,
    a_first_try_may_ask_for_time,
    a_first_try_may_say_that_no_retry_helps,
    retries_obey_the_same_words,
    a_word_does_not_count_if_the_call_succeeds,
);

async fn a_first_try_that_snoozes_is_deferred_without_an_attempt(db: Db) {
    let mut shop = Shop::open(&db, [Answer::Say(Word::Snooze)]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(quick(slow()))).await);
    shop.next_try().await;
    let again = shop.next_try().await;
    assert_eq!((again.id, again.attempt), (id, 1));
    shop.close().await;
}

async fn a_first_try_may_ask_for_time(db: Db) {
    let shop = Shop::open(&db, [Answer::Say(Word::RetryAfter)]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(quick(slow()))).await);
    let task = shop.redrive.get(id).await.unwrap().unwrap();
    assert_eq!(task.due.since(task.created_at).as_secs(), 3600, "not after 5 ms");
    shop.close().await;
}

async fn a_first_try_may_say_that_no_retry_helps(db: Db) {
    let shop = Shop::open(&db, [Answer::Say(Word::Fatal), Answer::Say(Word::Cancel)]).await;
    for persist in [Persist::RetryOnly, Persist::OnFailure] {
        let called = shop.redrive.call(pay(1).persist(persist)).await;
        assert!(matches!(called, Err(CallError::Rejected { .. })), "{called:?}");
    }
    assert_eq!(db.count("retry_task").await + db.count("retry_dead").await + db.count("retry_archive").await, 0);
    shop.close().await;
}

async fn retries_obey_the_same_words(db: Db) {
    let say = Answer::Say;
    let mut shop = Shop::open(&db, [Answer::Timeout, say(Word::Snooze), say(Word::RetryAfter)]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(quick(slow()))).await);
    let tries = [shop.next_try().await, shop.next_try().await, shop.next_try().await];
    assert_eq!(tries.map(|t| t.attempt), [1, 2, 2]);
    let waiting = loop {
        let task = shop.redrive.get(id).await.unwrap().unwrap();
        if task.status == Status::Pending && task.attempts == 2 {
            break task;
        }
    };
    assert_eq!(waiting.postponements, 1);
    assert!(waiting.due.since(waiting.updated_at).as_secs() >= 3600);
    shop.answer(say(Word::Cancel));
    shop.redrive.retry_now(id, None).await.unwrap();
    while db.count("retry_archive").await == 0 {
        moment().await;
    }
    shop.close().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn a_word_does_not_count_if_the_call_succeeds(db: Db) {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Fickle;
    impl redrive::Retryable for Fickle {
        const METHOD: &'static str = "fickle";
        type Output = ();
        type Error = std::fmt::Error;
        async fn execute(&self, cx: &redrive::Context<'_>) -> Result<(), std::fmt::Error> {
            cx.fatal();
            Ok(())
        }
    }
    let shop = Shop::with(&db, [], redrive::Builder::handler::<Fickle>).await;
    shop.redrive.call(Fickle).await.unwrap();
    shop.close().await;
}
