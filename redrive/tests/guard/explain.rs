//! A poll goes by the index, whatever else is in the table.

use crate::bills::{Shop, guard, poll};
use crate::harness::{Db, Kind, stores};

stores!(no_scan_reads_the_whole_table, the_index_is_offered_and_created_on_request);

async fn no_scan_reads_the_whole_table(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, table) = shop.start(guard().create_index(true).concurrency(32)).await;
    shop.fill(100_000, "4000", 1000).await;
    shop.sql(if shop.kind == Kind::MySql { "ANALYZE TABLE user_bill" } else { "ANALYZE user_bill" }).await;
    for (name, plan) in table.explain().await.unwrap() {
        assert!(plan.contains("user_bill_err_scan"), "{name} on {:?} does not use its index:\n{plan}", shop.kind);
        let whole = ["SCAN user_bill", "Seq Scan on user_bill", "\"access_type\": \"ALL\"", "Table scan on user_bill"];
        assert!(
            !whole.iter().any(|scan| plan.contains(scan)),
            "{name} on {:?} reads the whole table:\n{plan}",
            shop.kind
        );
    }
    let report = poll(&guards).await;
    assert_eq!((report.again, report.lost), (1000, 0));
}

async fn the_index_is_offered_and_created_on_request(db: Db) {
    let shop = Shop::open(db).await;
    let before = guard().inspect(shop.database()).await.unwrap();
    assert_eq!((before.missing_columns.len(), before.missing_index), (9, true));
    let (_guards, table) = shop.start(guard()).await;
    let offered = table.inspect().await.unwrap();
    assert!(offered.missing_index && offered.missing_columns.is_empty() && !offered.is_fine());
    assert_eq!(offered.sql.len(), 1);
    assert!(offered.sql[0].contains("user_bill_err_scan"), "{:?}", offered.sql);
    shop.sql(&offered.sql[0]).await; // it is what it says
    assert!(table.inspect().await.unwrap().is_fine());
    shop.start(guard().create_index(true)).await;
}
