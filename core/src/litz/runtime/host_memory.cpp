// An allocator of host memory that keeps what its owners gave back, for the next request.
//
// torch frees the memory of a storage through the storage's own deleter, when the last owner is gone: a tensor, a view,
// a NumPy array, a capsule, another process's copy of a handle that torch keeps alive. Only this deleter gives memory
// back here, so no memory that anybody has can be handed out. `litz.runtime.host_memory` builds this file.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <vector>

#include <pthread.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto PERIOD = std::chrono::seconds(1);
constexpr auto LONGEST_IDLE = std::chrono::seconds(10);

struct Block {
    void *place;
    size_t size;
    Clock::time_point since;  // when it became free
};

void give_to_system(std::vector<Block> &blocks) {
    for (const Block &block : blocks) c10::free_cpu(block.place);
    blocks.clear();
}

// Rounds up by an eighth at most: sizes that grow or vary a little find blocks of the sizes before.
size_t block_size(size_t nbytes) {
    size_t step = 64;
    while (step * 16 <= nbytes) step *= 2;
    return (nbytes + step - 1) / step * step;
}

class Memory {
   public:
    void *take(size_t nbytes) {
        std::vector<Block> surplus;
        void *place = nullptr;
        const size_t size = block_size(nbytes);
        {
            std::lock_guard<std::mutex> guard(lock_);
            surplus.reserve(kept_.size());
            size_t best = kept_.size();
            for (size_t at = kept_.size(); at-- > 0;) {  // the last one given back is in the processor's cache
                const bool fits = kept_[at].size >= nbytes && kept_[at].size <= size + size / 4;
                if (fits && (best == kept_.size() || kept_[at].size < kept_[best].size)) best = at;
            }
            if (best < kept_.size()) {
                used_.emplace(kept_[best].place, kept_[best].size);
                place = kept_[best].place;
                bytes_kept_ -= kept_[best].size;
                note_used(kept_[best].size);
                kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));
            } else {
                note_used(size);
                shrink(surplus);
            }
        }
        give_to_system(surplus);
        if (place == nullptr) place = fresh(size);
        return place;
    }

    void give(void *place) noexcept {
        std::vector<Block> surplus;
        try {
            std::lock_guard<std::mutex> guard(lock_);
            const auto found = used_.find(place);
            if (found == used_.end()) {
                surplus.push_back({place, 0, {}});
            } else {
                const size_t size = found->second;
                kept_.reserve(kept_.size() + 1);
                surplus.reserve(kept_.size() + 1);
                watch();
                used_.erase(found);
                bytes_used_ -= size;
                bytes_kept_ += size;
                kept_.push_back({place, size, Clock::now()});
                shrink(surplus);
            }
        } catch (...) {  // no memory to keep books, or no thread: nothing is kept
            std::lock_guard<std::mutex> guard(lock_);
            const auto found = used_.find(place);
            if (found != used_.end()) {
                bytes_used_ -= found->second;
                used_.erase(found);
            }
            c10::free_cpu(place);
        }
        give_to_system(surplus);
    }

    void release() {
        std::vector<Block> all;
        {
            std::lock_guard<std::mutex> guard(lock_);
            all.swap(kept_);
            bytes_kept_ = 0;
        }
        give_to_system(all);
    }

    void count(size_t counts[3]) {
        std::lock_guard<std::mutex> guard(lock_);
        counts[0] = bytes_used_, counts[1] = bytes_kept_, counts[2] = used_.size();
    }

    void before_fork() { lock_.lock(); }

    void after_fork(bool child) {
        if (child) watched_ = false;  // threads do not go with a fork
        lock_.unlock();
    }

   private:
    void *fresh(size_t size) {
        void *place;
        try {
            try {
                place = c10::alloc_cpu(size);
            } catch (...) {  // the system has no memory left: it gets all that is free here
                release();
                place = c10::alloc_cpu(size);
            }
            try {
                std::lock_guard<std::mutex> guard(lock_);
                used_.emplace(place, size);
            } catch (...) {
                c10::free_cpu(place);
                throw;
            }
        } catch (...) {
            std::lock_guard<std::mutex> guard(lock_);
            bytes_used_ -= size;
            throw;
        }
        return place;
    }

    void note_used(size_t size) {
        bytes_used_ += size;
        if (bytes_used_ > most_now_) most_now_ = bytes_used_;
    }

    // Moves the oldest blocks to `surplus` until what is used and kept is at most one and a half times what was used at
    // a time lately: calls take blocks of other sizes in turn.
    void shrink(std::vector<Block> &surplus) {
        const size_t most = most_now_ > most_before_ ? most_now_ : most_before_;
        const size_t limit = most + most / 2;
        size_t number = 0;
        while (number < kept_.size() && bytes_used_ + bytes_kept_ > limit) bytes_kept_ -= kept_[number++].size;
        move_oldest(surplus, number);
    }

    // `to` has room for all that is kept.
    void move_oldest(std::vector<Block> &to, size_t number) {
        const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(number);
        to.insert(to.end(), kept_.begin(), end);
        kept_.erase(kept_.begin(), end);
    }

    // While something is kept, a thread gives back what nobody took for a while.
    void watch() {
        if (watched_) return;
        std::thread([this] {
            do std::this_thread::sleep_for(PERIOD);
            while (sweep());
        }).detach();
        watched_ = true;
    }

    bool sweep() noexcept {
        std::vector<Block> idle;
        bool goes_on;
        {
            std::lock_guard<std::mutex> guard(lock_);
            try {
                idle.reserve(kept_.size());
            } catch (...) {
                return true;  // again in a while
            }
            const auto now = Clock::now();
            if (now - turned_ > LONGEST_IDLE) {
                turned_ = now;
                most_before_ = most_now_;
                most_now_ = bytes_used_;
            }
            size_t number = 0;
            while (number < kept_.size() && now - kept_[number].since > LONGEST_IDLE)
                bytes_kept_ -= kept_[number++].size;
            move_oldest(idle, number);
            goes_on = watched_ = !kept_.empty();
        }
        give_to_system(idle);
        return goes_on;
    }

    std::mutex lock_;
    std::unordered_map<void *, size_t> used_;  // sizes by place
    std::vector<Block> kept_;                  // the oldest first
    size_t bytes_used_ = 0, bytes_kept_ = 0;
    size_t most_now_ = 0, most_before_ = 0;  // of bytes in use at a time, in this span of time and the one before
    Clock::time_point turned_ = Clock::now();
    bool watched_ = false;
};

// Never destroyed: tensors may outlive what ends a process.
Memory &memory() {
    static Memory *const one = [] {
        auto *made = new Memory;
        pthread_atfork([] { memory().before_fork(); }, [] { memory().after_fork(false); },
                       [] { memory().after_fork(true); });
        return made;
    }();
    return *one;
}

void give(void *place) {
    if (place == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(place);
    memory().give(place);
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override {
        const c10::Device cpu(c10::DeviceType::CPU);
        if (nbytes == 0) return {nullptr, nullptr, &give, cpu};
        void *const place = memory().take(nbytes);
        c10::profiledCPUMemoryReporter().New(place, nbytes);
        return {place, place, &give, cpu};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &give; }

    void copy_data(void *to, const void *from, std::size_t nbytes) const override {
        default_copy_data(to, from, nbytes);
    }
};

}  // namespace

#define LITZ_PUBLIC extern "C" __attribute__((visibility("default")))

// The allocator's address.
LITZ_PUBLIC void *litz_allocator() {
    static Allocator *const one = new Allocator;
    memory();
    return one;
}

// Bytes in use, bytes kept, and blocks in use.
LITZ_PUBLIC void litz_count(size_t counts[3]) { memory().count(counts); }

// Gives all that is kept back to the system.
LITZ_PUBLIC void litz_release() { memory().release(); }
