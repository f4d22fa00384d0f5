//! What is due, and what letters died of.

use redrive::store::{Count, Exactness};
use redrive::{DeadReason, Failure, NewTask, Outcome, Policy};

use crate::harness::*;

layouts!(what_is_due_is_counted, letters_of_the_same_error_are_a_group,);

async fn what_is_due_is_counted(db: Db) {
    assert_eq!(db.store.count_due(NOW).await.unwrap(), Count::default());
    for (n, due) in [(1, NOW), (2, later(5)), (3, later(60))] {
        add(&db.store, new(n).at(due)).await;
    }
    add(&db.store, NewTask::new("other", &1).unwrap().at(NOW)).await;
    let counts = [db.store.count_due(NOW).await.unwrap(), db.store.count_due(later(5)).await.unwrap()];
    assert_eq!(counts, [2, 3].map(|n| Count { n, exactness: Exactness::Exact }));
}

async fn letters_of_the_same_error_are_a_group(db: Db) {
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    for n in 0..4 {
        add(&db.store, new(n).policy(once.clone())).await;
    }
    let me = node(&db.store).await;
    let claimed = claim_all(&db.store, me, NOW).await.tasks;
    for (n, task) in claimed.iter().enumerate() {
        let said = if n == 0 { "no route".to_owned() } else { format!("order {n} <is> locked") };
        end(&db.store, task, Outcome::Failed(Failure::retry("too_busy", said)), later(n as u64)).await;
    }
    db.store.acting("ada").unwrap().take_over(claimed[1].id, "ada", NOW).await.unwrap();
    let found = db.store.dead_groups().await.unwrap();
    assert!(found.all);
    let [locked, route] = &found.groups[..] else { panic!("{found:?}") };
    assert_eq!((locked.letters, locked.unowned, route.letters), (3, 2, 1));
    assert_eq!((locked.first, locked.last), (later(1), later(3)));
    assert_eq!((locked.reason, locked.error_kind.as_deref()), (DeadReason::Exhausted, Some("too_busy")));
    assert_eq!(locked.common.as_deref(), Some("<is> locked"), "what all of them have");
    assert_eq!(route.message.as_deref(), Some("no route"));
}
