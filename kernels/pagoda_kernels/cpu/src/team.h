// A fixed team of threads that runs one job at a time, with barriers inside of it.
//
// Why not OpenMP: a step of a small model takes 1.5 ms and holds a hundred barriers. libgomp's barrier either spins without end, which
// starves the other process on a shared core, or sleeps after GOMP_SPINCOUNT, which costs a wake-up of some 50 us each time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <sched.h>
#include <thread>
#include <vector>

#include <immintrin.h>

namespace pagoda {

class Team {
  public:
    explicit Team(int threads) : size_(threads) {
        try {
            for (int index = 1; index < threads; ++index) workers_.emplace_back([this, index] { work(index); });
        } catch (...) { // the system grants no further thread: those there are would end the process with their vector
            stop();
            throw;
        }
    }
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;
    ~Team() { stop(); }

    int size() const { return size_; }

    // Run job(index) on every thread of the team, the caller being thread 0; returns when all have ended.
    void run(const std::function<void(int)> &job) {
        job_ = &job;
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        job(0);
        barrier();
    }

    // Wait until every thread of the team is here. Spins first (both sides of a panel end within microseconds of each other), then
    // yields: a thread that the kernel took off its core needs that core back.
    void barrier() {
        if (size_ == 1) return;
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) {
            if (spin < kSpins) _mm_pause();
            else sched_yield();
        }
    }

    // The next of `count` shares of a stage: shares are taken, not dealt, so that a thread that lost its core for a while does not make
    // the others wait for a half of the stage. Every thread calls it until it gets `count` or more; `stage` names a counter that
    // `rewind` has set to 0 at least one barrier ago.
    int take(int stage) { return counters_[stage].value.fetch_add(1, std::memory_order_relaxed); }
    void rewind(int stage) { counters_[stage].value.store(0, std::memory_order_relaxed); }

  private:
    static constexpr int kSpins = 4000;
    static constexpr int kIdleSpins = 1000;
    struct alignas(64) Counter {
        std::atomic<int> value{0};
    };

    void stop() {
        job_ = nullptr;
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        for (auto &worker : workers_) worker.join();
    }

    void work(int index) {
        uint32_t seen = 0;
        for (;;) {
            for (int spin = 0; spin < kIdleSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) _mm_pause();
            generation_.wait(seen, std::memory_order_acquire);
            if (generation_.load(std::memory_order_acquire) == seen) continue;
            ++seen;
            if (job_ == nullptr) return;
            (*job_)(index);
            barrier();
        }
    }

    const int size_;
    std::vector<std::thread> workers_;
    const std::function<void(int)> *job_ = nullptr;
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    Counter counters_[2];
};

} // namespace pagoda
