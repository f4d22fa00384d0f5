use std::time::Duration;

use redrive::store::TaskFilter;
use redrive::{NewTask, Status, TaskId};

use crate::harness::*;

layouts!(pages_are_complete_and_in_order, filters_hold_together, filters_are_values_not_sql);

async fn pages_are_complete_and_in_order(db: Db) {
    for n in 0..50 {
        db.store.insert(vec![new(n)], NOW + Duration::from_millis(n)).await.unwrap();
    }
    let mut filter = TaskFilter::default();
    let mut seen: Vec<TaskId> = Vec::new();
    loop {
        let page = db.store.list(&filter, 7).await.unwrap();
        seen.extend(page.iter().map(|t| t.id));
        let Some(last) = page.last() else { break };
        filter.after = Some(last.id);
    }
    assert_eq!(seen.len(), 50);
    assert!(seen.windows(2).all(|w| w[0] > w[1]), "newest first, none twice");
}

async fn filters_hold_together(db: Db) {
    let node = node(&db.store).await;
    db.store.insert(vec![new(1).business("order", "1"), new(2).business("order", "2")], NOW).await.unwrap();
    assert_eq!(claim_all(&db.store, node, NOW).await.tasks.len(), 2);
    let other = NewTask::new("other", &1).unwrap().key("k").business("order", "1");
    db.store.insert(vec![other], later(60)).await.unwrap();
    let count = async |filter: TaskFilter| db.store.list(&filter, 100).await.unwrap().len();
    let text = |s: &str| Some(s.to_owned());
    let all = TaskFilter::default;
    assert_eq!(count(all()).await, 3);
    assert_eq!(count(TaskFilter { status: Some(Status::Running), ..all() }).await, 2);
    assert_eq!(count(TaskFilter { status: Some(Status::Pending), ..all() }).await, 1);
    assert_eq!(count(TaskFilter { method: text("m"), ..all() }).await, 2);
    assert_eq!(count(TaskFilter { key: text("k"), ..all() }).await, 1);
    assert_eq!(count(TaskFilter { business_id: text("1"), ..all() }).await, 2);
    assert_eq!(count(TaskFilter { business_id: text("1"), method: text("m"), ..all() }).await, 1);
    assert_eq!(count(TaskFilter { business_type: text("ORDER"), ..all() }).await, 0, "case counts");
    assert_eq!(count(TaskFilter { created_from: Some(later(60)), ..all() }).await, 1);
    assert_eq!(count(TaskFilter { created_before: Some(later(60)), ..all() }).await, 2);
    assert_eq!(count(TaskFilter { error_kind: text("timeout"), ..all() }).await, 0);
}

async fn filters_are_values_not_sql(db: Db) {
    add_many(&db.store, 3).await;
    for evil in ["' OR '1'='1", "x'; DROP TABLE retry_task; --", "$1 ? ?", "%"] {
        let filter = TaskFilter { key: Some(evil.into()), method: Some(evil.into()), ..TaskFilter::default() };
        assert!(db.store.list(&filter, 10).await.unwrap().is_empty());
    }
    assert_eq!(db.count("retry_task").await, 3);
}
