//! Which partitions of a topic know the present producer, and which partition a key goes to.
//!
//! A broker that knows nothing of a producer takes any first sequence number from it. So if a
//! producer's first batch of a partition is refused, the next one, already on its way, is appended
//! and overtakes it. Until a partition has acknowledged a record of the producer (it is warm), one
//! record with a key is in flight there, alone. No socket, no clock.

use std::{ffi::c_void, ptr};

use rdkafka::bindings::{
    rd_kafka_msg_partitioner_consistent, rd_kafka_msg_partitioner_fnv1a,
    rd_kafka_msg_partitioner_murmur2, rd_kafka_topic_t,
};

use crate::ledger::Seq;

type Hash = unsafe extern "C" fn(
    *const rd_kafka_topic_t,
    *const c_void,
    usize,
    i32,
    *mut c_void,
    *mut c_void,
) -> i32;

/// librdkafka's property `partitioner`, as far as it keeps a key in one partition.
#[derive(Clone, Copy, Debug)]
pub struct Partitioner {
    hash: Option<Hash>,
    /// Records without a key, or with an empty one, go anywhere.
    null_anywhere: bool,
    empty_anywhere: bool,
}

impl Partitioner {
    /// By the property's value; an unknown one is refused by librdkafka itself.
    pub fn named(name: &str) -> Self {
        let (hash, null_anywhere, empty_anywhere): (Option<Hash>, bool, bool) = match name {
            "murmur2_random" => (Some(rd_kafka_msg_partitioner_murmur2), true, false),
            "murmur2" => (Some(rd_kafka_msg_partitioner_murmur2), false, false),
            "fnv1a_random" => (Some(rd_kafka_msg_partitioner_fnv1a), true, false),
            "fnv1a" => (Some(rd_kafka_msg_partitioner_fnv1a), false, false),
            "consistent_random" => (Some(rd_kafka_msg_partitioner_consistent), true, true),
            "consistent" => (Some(rd_kafka_msg_partitioner_consistent), false, false),
            _ => (None, true, true),
        };
        Partitioner {
            hash,
            null_anywhere,
            empty_anywhere,
        }
    }

    /// The partition of `count` that librdkafka chooses; none where its choice is random, and order
    /// has no meaning.
    pub fn partition(self, key: Option<&[u8]>, count: usize) -> Option<usize> {
        let anywhere = match key {
            None => self.null_anywhere,
            Some([]) => self.empty_anywhere,
            Some(_) => false,
        };
        let (Some(hash), false) = (self.hash, anywhere) else {
            return None;
        };
        let count = i32::try_from(count.max(1)).unwrap_or(i32::MAX);
        let key = key.unwrap_or_default();
        // SAFETY: these three read the key, for its length, and nothing else.
        let partition = unsafe {
            hash(
                ptr::null(),
                key.as_ptr().cast(),
                key.len(),
                count,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        // CRC32 and FNV are unsigned there and taken modulo `count`: never negative.
        usize::try_from(partition).ok()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Partition {
    warm: bool,
    /// The record that goes alone.
    trying: Option<Seq>,
}

/// The partitions of one topic.
#[derive(Debug)]
pub struct Partitions {
    partitions: Vec<Partition>,
    cold: usize,
    trying: usize,
}

impl Default for Partitions {
    /// One, until the brokers say how many there are.
    fn default() -> Self {
        Partitions {
            partitions: vec![Partition::default()],
            cold: 1,
            trying: 0,
        }
    }
}

impl Partitions {
    pub fn count(&self) -> usize {
        self.partitions.len()
    }

    /// Every partition is warm: nobody has to wait.
    pub fn are_warm(&self) -> bool {
        self.cold == 0
    }

    /// The brokers said how many there are.
    pub fn resize(&mut self, count: usize) {
        self.partitions.resize(count.max(1), Partition::default());
        self.count_again();
    }

    /// One more record with a key may be enqueued.
    pub fn takes(&self, partition: usize) -> bool {
        self.partitions
            .get(partition)
            .is_none_or(|p| p.warm || p.trying.is_none())
    }

    pub fn enqueued(&mut self, partition: usize, seq: Seq) {
        if let Some(p) = self.partitions.get_mut(partition)
            && !p.warm
        {
            p.trying = Some(seq);
            self.trying += 1;
        }
    }

    /// A record was delivered; `false` when it went to another partition than was foreseen: there
    /// are more or fewer of them now.
    pub fn delivered(&mut self, partition: usize, seq: Seq) -> bool {
        if self.cold == 0 && self.trying == 0 {
            return partition < self.partitions.len();
        }
        let mut foreseen = true;
        if self.trying > 0
            && let Some(tried) = self
                .partitions
                .iter_mut()
                .position(|p| p.trying == Some(seq))
        {
            self.partitions[tried].trying = None;
            self.trying -= 1;
            foreseen = tried == partition;
        }
        match self.partitions.get_mut(partition) {
            None => false,
            Some(p) => {
                self.cold -= usize::from(!std::mem::replace(&mut p.warm, true));
                foreseen
            }
        }
    }

    /// The brokers may know nothing of the producer any more; what is in flight stays so.
    pub fn cool(&mut self) {
        for p in &mut self.partitions {
            p.warm = false;
        }
        self.count_again();
    }

    /// Nothing is in flight that we shall hear of.
    pub fn forget_trying(&mut self) {
        for p in &mut self.partitions {
            p.trying = None;
        }
        self.trying = 0;
    }

    fn count_again(&mut self) {
        self.cold = self.partitions.iter().filter(|p| !p.warm).count();
        let trying = |p: &&Partition| p.trying.is_some();
        self.trying = self.partitions.iter().filter(trying).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_the_java_client_sends_them() {
        let java = Partitioner::named("murmur2_random");
        // org.apache.kafka.common.utils.Utils.murmur2("kafka") = 0xd067cf64.
        assert_eq!(
            java.partition(Some(b"kafka"), 1 << 20),
            Some((0x5067_cf64) % (1 << 20))
        );
        assert_eq!(java.partition(None, 8), None);
        assert!(java.partition(Some(b""), 8).is_some());
    }

    #[test]
    fn each_partitioner_knows_which_keys_have_an_order() {
        let anywhere = |name: &str, key| Partitioner::named(name).partition(key, 8).is_none();
        for name in ["murmur2_random", "fnv1a_random", "consistent_random"] {
            assert!(
                anywhere(name, None) && !anywhere(name, Some(b"k")),
                "{name}"
            );
        }
        for name in ["murmur2", "fnv1a", "consistent"] {
            assert!(
                !anywhere(name, None) && !anywhere(name, Some(b"")),
                "{name}"
            );
        }
        assert!(anywhere("consistent_random", Some(b"")));
        assert!(anywhere("random", Some(b"k")));
    }

    #[test]
    fn one_record_goes_alone_until_its_partition_has_acknowledged_one() {
        let mut partitions = Partitions::default();
        partitions.resize(2);
        partitions.enqueued(0, Seq(1));
        assert!(!partitions.takes(0) && partitions.takes(1));
        assert!(partitions.delivered(0, Seq(1)) && partitions.takes(0) && !partitions.are_warm());
        partitions.enqueued(0, Seq(2));
        assert!(partitions.takes(0));
        partitions.cool();
        partitions.enqueued(0, Seq(3));
        assert!(!partitions.takes(0));
    }

    #[test]
    fn a_partition_that_another_record_warmed_and_time_cooled_is_not_blocked() {
        let mut partitions = Partitions::default();
        partitions.enqueued(0, Seq(1));
        assert!(partitions.delivered(0, Seq(2)) && partitions.delivered(0, Seq(1)));
        partitions.cool();
        assert!(partitions.takes(0));
    }

    #[test]
    fn a_record_that_went_elsewhere_is_told_and_blocks_nobody() {
        let mut partitions = Partitions::default();
        partitions.resize(2);
        partitions.enqueued(1, Seq(1));
        assert!(!partitions.delivered(3, Seq(1)));
        assert!(partitions.takes(1));
        partitions.resize(4);
        partitions.enqueued(1, Seq(2));
        assert!(!partitions.delivered(0, Seq(2)));
        assert!(partitions.takes(1));
    }
}
