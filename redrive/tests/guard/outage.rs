//! A business database that stops answering, and a poll that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::guard::{BoxError, BusinessDatabase, GuardHandler, Guards};

use crate::bills::{Does, Shop, guard};
use crate::harness::{Db, Kind, moment, stores};
use crate::proxy::{Proxy, Wire};

stores!(a_poll_that_panics_is_followed_by_the_next);

/// Stamps tests for the databases that are behind a network.
macro_rules! servers {
    ($($test:ident),* $(,)?) => {
        mod behind_a_network {
            mod postgres { crate::harness::stamp!([super super] fresh, Postgres, $($test),*); }
            mod mysql { crate::harness::stamp!([super super] fresh, MySql, $($test),*); }
        }
    };
}
servers!(a_database_that_says_nothing_ends_the_poll_and_the_next_one_works, a_stop_does_not_wait_for_a_silent_database);

/// Long enough for all that is waited for, and no part of what is tested.
const DEADLINE: Duration = Duration::from_secs(30);

/// The shop's database, behind a proxy.
async fn behind_a_proxy(shop: &Shop) -> (Proxy, BusinessDatabase) {
    let proxy = Proxy::before(&shop.url).await;
    let zone = if shop.kind == Kind::MySql { "+00:00" } else { "UTC" };
    let database = BusinessDatabase::from(&*proxy.url).time_zone(zone);
    (proxy, database)
}

async fn a_database_that_says_nothing_ends_the_poll_and_the_next_one_works(db: Db) {
    let shop = Shop::open(db).await;
    let (proxy, database) = behind_a_proxy(&shop).await;
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let database = database.answer_timeout(Duration::from_millis(300));
    let guards = builder.guard(guard(), database, shop.script.clone()).start().await.unwrap();
    shop.add(1, "FAIL", "err_status=4000 err_start_time=-1").await;
    shop.script.will(1, Does::Succeeds);
    proxy.set(Wire::Held, Wire::Held);
    let report = tokio::time::timeout(DEADLINE, guards.poll_once()).await.expect("the poll ends").remove(0);
    assert!(report.error.is_some() && report.succeeded == 0, "{report:?}");
    proxy.set(Wire::Cut, Wire::Cut);
    proxy.set(Wire::Open, Wire::Open);
    let report = tokio::time::timeout(DEADLINE, guards.poll_once()).await.unwrap().remove(0);
    assert_eq!((report.error, report.succeeded), (None, 1));
}

/// Its answer timeout is the default, a minute.
async fn a_stop_does_not_wait_for_a_silent_database(db: Db) {
    let shop = Shop::open(db).await;
    let (proxy, database) = behind_a_proxy(&shop).await;
    let builder = Guards::builder(shop.db.store.clone()).scan_interval(Duration::from_secs(1));
    let guards = builder.guard(guard(), database, shop.script.clone()).start().await.unwrap();
    proxy.set(Wire::Held, Wire::Held);
    // A poll that begins now takes the lock, which is in another database, and is held up.
    let is_polling = async {
        while shop.db.sql("SELECT COUNT(*) FROM redrive_lock WHERE name LIKE 'guard:%' AND owner IS NOT NULL").await
            != Some(1)
        {}
    };
    tokio::time::timeout(DEADLINE, is_polling).await.expect("it polls");
    tokio::time::timeout(DEADLINE, guards.stop()).await.expect("it stops");
}

/// A handler whose route, which the poll asks for, is a mistake at first.
struct Frail(Arc<AtomicU32>);

impl GuardHandler for Frail {
    type Id = i64;

    async fn check_status(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }

    async fn handle(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }

    fn manual_success_route(&self) -> String {
        let asked = self.0.fetch_add(1, Ordering::AcqRel);
        assert!(asked > 0, "on purpose");
        String::new()
    }
}

async fn a_poll_that_panics_is_followed_by_the_next(db: Db) {
    let shop = Shop::open(db).await;
    let (_guards, _) = shop.start(guard()).await; // its columns are there
    shop.add(1, "FAIL", "err_status=4001 err_start_time=-9").await;
    let asked = Arc::new(AtomicU32::new(0));
    let builder = Guards::builder(shop.db.store.clone()).scan_interval(Duration::from_secs(1));
    let guards = builder.guard(guard(), shop.database(), Frail(asked.clone())).start().await.unwrap();
    let told = async {
        while shop.sql("SELECT COUNT(*) FROM user_bill WHERE err_submit_manual_status = 4000").await != Some(1) {
            moment().await;
        }
    };
    tokio::time::timeout(DEADLINE, told).await.expect("the next poll tells people");
    assert!(asked.load(Ordering::Acquire) > 1);
    guards.stop().await;
}
