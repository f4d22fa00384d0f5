//! What happened in each minute.

use std::time::Duration;

use redrive::NodeNumber;
use redrive::store::Moment;

use crate::harness::*;

stores!(minutes_of_all_nodes_are_added_up, a_minute_is_written_again_with_what_is_known_then, the_console_key_stays,);

fn moment(seconds: u64, enqueued: u64) -> Moment {
    let mut moment = Moment::at(later(seconds));
    (moment.enqueued, moment.done) = (enqueued, 1);
    moment
}

async fn minutes_of_all_nodes_are_added_up(db: Db) {
    for (node, seconds, enqueued) in [(1, 0, 5), (2, 0, 7), (1, 60, 1), (1, 600, 2)] {
        db.store.note_minute(NodeNumber(node), &moment(seconds, enqueued)).await.unwrap();
    }
    let by_minute = db.store.history(NOW, 1).await.unwrap();
    assert_eq!(
        by_minute.iter().map(|m| (m.at, m.enqueued, m.done)).collect::<Vec<_>>(),
        [(NOW, 12, 2), (later(60), 1, 1), (later(600), 2, 1)]
    );
    let by_ten = db.store.history(NOW, 10).await.unwrap();
    assert_eq!(by_ten.iter().map(|m| (m.at, m.enqueued)).collect::<Vec<_>>(), [(NOW, 13), (later(600), 2)]);
    assert_eq!(db.store.history(later(61), 1).await.unwrap().len(), 2, "the minute that it is in, and after");
    assert_eq!(db.store.history(later(660), 1).await.unwrap(), []);
}

async fn a_minute_is_written_again_with_what_is_known_then(db: Db) {
    let mut first = moment(0, 5);
    (first.waiting, first.letters, first.lag) = (Some(9), Some(3), Some(Duration::from_millis(1500)));
    db.store.note_minute(NodeNumber(1), &first).await.unwrap();
    db.store.note_minute(NodeNumber(1), &moment(0, 6)).await.unwrap();
    let [seen] = db.store.history(NOW, 1).await.unwrap()[..] else { panic!("one minute") };
    assert_eq!((seen.enqueued, seen.done), (6, 1), "in the place of what was known before");
    assert_eq!(
        (seen.waiting, seen.letters, seen.lag),
        (first.waiting, first.letters, first.lag),
        "nothing is forgotten"
    );
}

async fn the_console_key_stays(db: Db) {
    let (one, other) = tokio::join!(db.store.console_key(NOW), db.store.console_key(later(1)));
    assert_eq!(one.unwrap(), other.unwrap());
    assert_ne!(db.store.console_key(NOW).await.unwrap(), [0; 32]);
}
