//! Which producer wrote which record, by the broker's own files: consumers are not told.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{ErrorKind, Read, Seek, SeekFrom},
    path::Path,
};

/// Records that were written together.
#[derive(Clone, Copy, Debug)]
struct Batch {
    first: i64,
    last: i64,
    producer: i64,
    /// Where it is in its file.
    starts: u64,
}

/// The batches of one topic, by partition and in order.
pub struct Batches(HashMap<i32, Vec<Batch>>);

impl Batches {
    /// `data` is the folder of the broker's log.
    pub fn read(data: &Path, topic: &str) -> Batches {
        let mut found: HashMap<i32, Vec<Batch>> = HashMap::new();
        for entry in fs::read_dir(data).expect("read the broker's log") {
            let folder = entry.expect("read the broker's log").path();
            let name = folder.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_prefix(topic)?.strip_prefix('-'));
            let Some(partition) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            let batches = found.entry(partition).or_default();
            for entry in fs::read_dir(&folder).expect("read a partition") {
                let file = entry.expect("read a partition").path();
                if file.extension().is_some_and(|extension| extension == "log") {
                    segment(&file, batches);
                }
            }
            batches.sort_by_key(|batch| batch.first);
        }
        Batches(found)
    }

    pub fn producer(&self, partition: i32, offset: i64) -> Option<i64> {
        let batches = self.0.get(&partition)?;
        let next = batches.partition_point(|batch| batch.first <= offset);
        let batch = batches[next.checked_sub(1)?];
        (offset <= batch.last).then_some(batch.producer)
    }
}

/// Takes the last batch from a partition's only segment.
pub fn cut_last(partition: &Path) {
    let mut batches = Vec::new();
    let path = partition.join("00000000000000000000.log");
    segment(&path, &mut batches);
    let last = batches.last().expect("a batch");
    let file = File::options().write(true).open(&path);
    let file = file.expect("open a segment");
    file.set_len(last.starts).expect("cut a segment");
}

/// The part of a batch that comes before its records.
/// <https://kafka.apache.org/documentation/#recordbatch>
const HEADER: usize = 61;

/// Offset and length come first; the length counts what follows it.
const BEFORE_LENGTH: i64 = 12;

fn segment(file: &Path, batches: &mut Vec<Batch>) {
    let mut file = File::open(file).expect("open a segment");
    let mut header = [0; HEADER];
    loop {
        let starts = file.stream_position().expect("read a segment");
        match file.read_exact(&mut header) {
            Ok(()) => {}
            // The end, or a batch that is being written.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return,
            Err(error) => panic!("read a segment: {error}"),
        }
        let long = |at: usize| i64::from_be_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let int = |at: usize| i32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let (first, length) = (long(0), i64::from(int(8)));
        batches.push(Batch {
            first,
            last: first + i64::from(int(23)),
            producer: long(43),
            starts,
        });
        let rest = BEFORE_LENGTH + length - HEADER as i64;
        file.seek(SeekFrom::Current(rest)).expect("pass a batch");
    }
}
