//! Source 2 §3.2 and §4.5: the same call is one task.

use redrive::{CallError, NewTask, OnDuplicate, Policy};

use crate::harness::{Db, moment, stores};
use crate::pay::{Answer, Shop, deferred, pay, slow};

stores!(
    source_2_the_key_is_the_method_and_a_hash_of_the_params,
    source_2_the_same_params_make_one_task_and_its_id_comes_back,
    source_2_other_params_make_another_task,
    source_2_a_duplicate_may_replace_the_policy,
    source_2_a_task_that_has_ended_frees_its_key,
);

async fn source_2_the_key_is_the_method_and_a_hash_of_the_params(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    let key = shop.redrive.get(id).await.unwrap().unwrap().key.unwrap();
    let (method, hash) = key.split_once(':').unwrap();
    assert_eq!((method, hash.len()), ("pay", 32));
    shop.close().await;
}

async fn source_2_the_same_params_make_one_task_and_its_id_comes_back(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout, Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    let called = shop.redrive.call(pay(1).policy(slow())).await;
    assert!(matches!(called, Err(CallError::Deferred { task_id, existed: true, .. }) if task_id == id), "{called:?}");
    let enqueued = shop.redrive.enqueue(pay(1)).await.unwrap();
    assert_eq!((enqueued.id, enqueued.existed), (id, true));
    assert_eq!(db.count("retry_task").await, 1);
    shop.close().await;
}

async fn source_2_other_params_make_another_task(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout, Answer::Timeout]).await;
    let ids = [
        deferred(shop.redrive.call(pay(1).policy(slow())).await),
        deferred(shop.redrive.call(pay(2).policy(slow())).await),
    ];
    assert_ne!(ids[0], ids[1]);
    shop.close().await;
}

async fn source_2_a_duplicate_may_replace_the_policy(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout]).await;
    let id = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    let again = NewTask::new("pay", &pay(1)).unwrap().policy(Policy { max_attempts: Some(77), ..slow() });
    let answer = shop.redrive.enqueue(again.on_duplicate(OnDuplicate::ReplacePolicy)).await.unwrap();
    assert_eq!((answer.id, answer.existed), (id, true));
    assert_eq!(shop.redrive.get(id).await.unwrap().unwrap().policy.max_attempts, Some(77));
    shop.close().await;
}

async fn source_2_a_task_that_has_ended_frees_its_key(db: Db) {
    let shop = Shop::open(&db, [Answer::Timeout, Answer::Code(200), Answer::Timeout]).await;
    let first = deferred(shop.redrive.call(pay(1)).await);
    while db.count("retry_task").await > 0 {
        moment().await;
    }
    let second = deferred(shop.redrive.call(pay(1).policy(slow())).await);
    assert_ne!(first, second);
    shop.close().await;
}
