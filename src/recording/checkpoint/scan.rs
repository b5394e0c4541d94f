//! Reads values with several threads of low priority.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::file::{COLD, Gentle};
use super::{Checkpoint, Shard};
use crate::files::parameters::compare::{Difference, difference};
use crate::files::parameters::scan::{ScanResult, scan};
use crate::files::parameters::{ReadAt as _, StoredAt, Tensor};
use crate::host::clock;
use crate::model::lock::lock;
use crate::model::units::Bytes;
use crate::recording::error::{InFile as _, RecordingError};

/// Size of the segment that one thread reads at once, in bytes; a multiple of every element's size.
const SEGMENT: u64 = 16 << 20;
/// The largest element, in bytes.
const ELEMENT: usize = 16;
/// The lowest priority, so that the job is scheduled first.
const NICE: i32 = 19;

/// Called at intervals with the number of bytes read and the total.
pub(crate) type Progress<'p> = dyn FnMut(u64, u64) + 'p;

/// The rate of reading values.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Speed {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) threads: usize,
}

impl fmt::Display for Speed {
    #[expect(clippy::cast_precision_loss, reason = "a speed for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = self.bytes as f64 / self.seconds.max(1e-9) / 1e9;
        write!(f, "{} read in {:.2} s ({speed:.1} GB/s)", Bytes::new(self.bytes), self.seconds)
    }
}

/// A part of a tensor: the tensor's number, and the range within its bytes.
struct Segment {
    tensor: usize,
    begin: u64,
    end: u64,
}

/// The segments of tensors of these sizes; none of a tensor without a size.
fn segments(sizes: &[Option<u64>]) -> Vec<Segment> {
    let cut = |(tensor, size): (usize, &Option<u64>)| {
        let size = size.unwrap_or(0);
        let starts = (0..size.div_ceil(SEGMENT)).map(|number| number * SEGMENT);
        starts.map(move |begin| Segment { tensor, begin, end: size.min(begin + SEGMENT) })
    };
    sizes.iter().enumerate().flat_map(cut).collect()
}

/// The files that a thread has open: one for each checkpoint, because files are read in order.
#[derive(Default)]
struct OpenFiles {
    open: Vec<(PathBuf, Gentle)>,
}

impl OpenFiles {
    fn file(&mut self, side: usize, shard: &Shard) -> Result<&Gentle, RecordingError> {
        if self.open.get(side).is_none_or(|(path, _)| *path != shard.path) {
            let file = Gentle::open(&shard.path)?;
            if file.identity() != shard.identity {
                return Err(RecordingError::Changed);
            }
            self.open.truncate(side);
            self.open.push((shard.path.clone(), file));
        }
        Ok(&self.open[side].1)
    }
}

/// Tests the values of every tensor that can be read, in their order.
pub(crate) fn scan_all(
    checkpoint: &Checkpoint,
    threads: usize,
    progress: &mut Progress<'_>,
) -> Result<(Vec<Option<ScanResult>>, Speed), RecordingError> {
    let tensors: Vec<(usize, &Tensor)> = checkpoint.tensors().collect();
    let place = |tensor: &Tensor| match tensor.place {
        StoredAt::Dense { offset } => Some(offset),
        StoredAt::Elsewhere { .. } => None,
    };
    let sizes: Vec<_> = tensors.iter().map(|(_, tensor)| place(tensor).map(|_| tensor.bytes)).collect();
    run(&sizes, (threads, 1), progress, ScanResult::and, |files, segment, buffers, done| {
        let (file, tensor) = tensors[segment.tensor];
        let shard = &checkpoint.files[file];
        let location = || format!("{}: tensor {:?}", shard.path.display(), tensor.name);
        let file = files.file(0, shard).at(location)?;
        let start = place(tensor).unwrap_or(0);
        let width = usize::try_from(tensor.dtype.bits() / 8).unwrap_or(1).clamp(1, ELEMENT);
        let (mut at, mut sum) = (segment.begin, ScanResult::default());
        // Pieces end at page boundaries, which may be within an element.
        let mut carried = 0;
        while at < segment.end {
            let wanted = usize::try_from(segment.end - at).unwrap_or(COLD).min(COLD);
            let read = file.read_some(&mut buffers[0][carried..carried + wanted], start + at);
            let read = read.at(|| format!("at byte {}", start + at)).at(location)?;
            let filled = carried + read;
            let whole = filled - filled % width;
            sum = sum.and(scan(tensor.dtype, &buffers[0][..whole]));
            buffers[0].copy_within(whole..filled, 0);
            carried = filled - whole;
            at += read as u64;
            done(read as u64);
        }
        Ok(sum)
    })
}

/// A tensor of one checkpoint and its counterpart in another, each with the number of its file.
pub(crate) type Pair<'p> = [(usize, &'p Tensor); 2];

/// Compares the values of pairs of one type and shape; absent where one of the two cannot be read.
pub(crate) fn compare_all(
    both: [&Checkpoint; 2],
    pairs: &[Pair<'_>],
    threads: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<Option<Difference>>, RecordingError> {
    let places: Vec<Option<[u64; 2]>> = pairs
        .iter()
        .map(|[before, after]| match (before.1.place, after.1.place) {
            (StoredAt::Dense { offset: old }, StoredAt::Dense { offset: new })
                if before.1.row_major && after.1.row_major =>
            {
                Some([old, new])
            }
            _ => None,
        })
        .collect();
    let sizes: Vec<_> =
        pairs.iter().zip(&places).map(|(pair, place)| place.map(|_| pair[0].1.bytes)).collect();
    let found = run(&sizes, (threads, 2), progress, Difference::and, |files, segment, buffers, done| {
        let (mut at, mut sum) = (segment.begin, Difference::default());
        let (pair, Some(place)) = (pairs[segment.tensor], places[segment.tensor]) else { return Ok(sum) };
        while at < segment.end {
            let wanted = usize::try_from(segment.end - at).unwrap_or(COLD).min(COLD);
            for side in 0..2 {
                let (file, tensor) = pair[side];
                let shard = &both[side].files[file];
                let location = || format!("{}: tensor {:?}", shard.path.display(), tensor.name);
                let file = files.file(side, shard).at(location)?;
                file.read_exact_at(&mut buffers[side][..wanted], place[side] + at).at(location)?;
            }
            sum = sum.and(difference(pair[0].1.dtype, &buffers[0][..wanted], &buffers[1][..wanted]));
            at += wanted as u64;
            done(wanted as u64);
        }
        Ok(sum)
    });
    Ok(found?.0)
}

/// Processes every segment of tensors of these sizes once, on so many threads with one buffer a side, until all are done or one
/// fails. Returns what `and` makes of the results of each tensor; absent for a tensor without a size.
fn run<R: Copy + Default + Send>(
    sizes: &[Option<u64>],
    (threads, sides): (usize, usize),
    progress: &mut Progress<'_>,
    and: fn(R, R) -> R,
    work: impl Fn(&mut OpenFiles, &Segment, &mut [Vec<u8>], &dyn Fn(u64)) -> Result<R, RecordingError> + Sync,
) -> Result<(Vec<Option<R>>, Speed), RecordingError> {
    let segments = segments(sizes);
    let found: Vec<Mutex<Option<R>>> =
        sizes.iter().map(|size| Mutex::new(size.map(|_| R::default()))).collect();
    let whole: u64 = segments.iter().map(|segment| segment.end - segment.begin).sum();
    let (next, read, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failed: Mutex<Option<RecordingError>> = Mutex::new(None);
    let threads = threads.clamp(1, segments.len().max(1));
    let (alive, ended) = channel::<()>();
    let start = clock::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let alive = alive.clone();
            scope.spawn({
                let (next, read, stop, failed, work) = (&next, &read, &stop, &failed, &work);
                let (segments, found) = (&segments, &found);
                move || {
                    // On Linux this sets the priority of the thread only. If it is refused, the priority is unchanged.
                    let _ = rustix::process::nice(NICE);
                    let mut files = OpenFiles::default();
                    let mut buffers = vec![vec![0; COLD + ELEMENT]; sides];
                    let done = |bytes| {
                        read.fetch_add(bytes, Ordering::Relaxed);
                    };
                    while !stop.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(segment) = segments.get(number) else { break };
                        match work(&mut files, segment, &mut buffers, &done) {
                            Ok(part) => {
                                let mut whole = lock(&found[segment.tensor]);
                                *whole = whole.map(|whole| and(whole, part));
                            }
                            Err(error) => {
                                stop.store(true, Ordering::Relaxed);
                                lock(failed).get_or_insert(error);
                            }
                        }
                    }
                    drop(alive);
                }
            });
        }
        drop(alive);
        while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            progress(read.load(Ordering::Relaxed), whole);
        }
    });
    let seconds = clock::now().since(start).as_secs_f64();
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            let found = found.into_iter().map(|found| found.into_inner().unwrap_or_default()).collect();
            Ok((found, Speed { bytes: whole, seconds, threads }))
        }
    }
}
