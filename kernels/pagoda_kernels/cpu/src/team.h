// A team of threads that walks through the stages of one job at a time. The caller walks them from the first to the last; each other thread
// comes as soon as the kernel gives it a core, passes what is finished, and helps with the rest.
//
// Why not OpenMP: a step of a small model takes 1 ms and has a hundred stages. libgomp's barrier either spins without end, which starves the
// other process on a shared core, or sleeps after GOMP_SPINCOUNT, which costs a wake-up of some 50 us each time. And it waits for every
// thread: while the one that plans the next step held the second core for 0.3 ms, the first one stood still.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <sched.h>
#include <thread>
#include <vector>

#include <immintrin.h>

namespace pagoda {

class Team {
  public:
    // `stages` is the most that a job has.
    Team(int threads, int stages) : stages_(stages), stage_(std::make_unique<Stage[]>(stages)) {
        try {
            for (int index = 1; index < threads; ++index) helpers_.emplace_back([this, index] { help(index); });
        } catch (...) { // the system grants no further thread: those there are would end the process with their vector
            stop();
            throw;
        }
    }
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;
    ~Team() { stop(); }

    // Run job(0) here and job(index) on every thread that comes before it ends; returns when all that came have left.
    void run(const std::function<void(int)> &job) {
        for (int stage = 0; stage < stages_; ++stage) {
            stage_[stage].taken.store(0, std::memory_order_relaxed);
            stage_[stage].done.store(0, std::memory_order_relaxed);
        }
        job_ = &job;
        uint32_t number = generation_.load(std::memory_order_relaxed) + 1;
        if (number == 0) number = 1; // 0 is closed; a small model comes round to it after 50 days
        open_.store(number);
        generation_.store(number, std::memory_order_release);
        generation_.notify_all();
        job(0);
        open_.store(0);
        await([&] { return inside_.load() == 0; });
    }

    // Items 0 to count - 1 of stage number `number`, each once, by whoever is free; returns when all of them are done. Every thread of a job
    // calls it for every stage, in order. Items are taken, not dealt: a thread that lost its core does not hold up a half of the stage.
    template <class Item> void each(int number, int count, const Item &item) {
        Stage &stage = stage_[number];
        if (stage.done.load(std::memory_order_acquire) == count) return;
        int mine = 0;
        for (int index; (index = stage.taken.fetch_add(1, std::memory_order_relaxed)) < count; ++mine) item(index);
        if (mine > 0) stage.done.fetch_add(mine, std::memory_order_acq_rel);
        await([&] { return stage.done.load(std::memory_order_acquire) == count; });
    }

  private:
    static constexpr int kSpins = 4000;
    static constexpr int kIdleSpins = 1000;
    struct Stage {
        std::atomic<int> taken{0}, done{0};
    };

    // Spins first (both sides of a panel end within microseconds of each other), then yields: a thread that the kernel took off its core
    // needs that core back.
    template <class Condition> static void await(const Condition &met) {
        for (int spin = 0; !met(); ++spin) {
            if (spin < kSpins) _mm_pause();
            else sched_yield();
        }
    }

    void stop() {
        stopping_.store(true);
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
        for (auto &helper : helpers_) helper.join();
    }

    void help(int index) {
        uint32_t seen = 0;
        while (!stopping_.load()) {
            for (int spin = 0; spin < kIdleSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) _mm_pause();
            generation_.wait(seen, std::memory_order_acquire);
            seen = generation_.load(std::memory_order_acquire);
            // Entered before it is asked whether the job is still open: `run` closes it before it asks who is inside. One of the two sees
            // the other, so nobody walks through a job that has ended.
            inside_.fetch_add(1);
            if (open_.load() == seen) (*job_)(index);
            inside_.fetch_sub(1);
        }
    }

    const int stages_;
    const std::unique_ptr<Stage[]> stage_;
    std::vector<std::thread> helpers_;
    const std::function<void(int)> *job_ = nullptr;
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<uint32_t> open_{0};
    alignas(64) std::atomic<int> inside_{0};
};

} // namespace pagoda
